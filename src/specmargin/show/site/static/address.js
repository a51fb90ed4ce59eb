// Addresses: every model has a folder with a preview card of its own, so a state's link is MODEL/?the rest.

export const ROOT = new URL("./", document.baseURI); // every page has a <base> that leads to it

export function folderModel(models) {
  const folder = decodeURIComponent(location.pathname.slice(ROOT.pathname.length).split("/")[0] ?? "");
  return models.includes(folder) ? folder : models[0];
}

export function keepFolders(models, standing) {
  const inFolder = (write) => (data, title, address) => {
    if (!address) return write(data, title);
    const asked = new URL(address, location.href), model = asked.searchParams.get("model") ?? standing;
    if (!models.includes(model)) return write(data, title, address);
    asked.searchParams.delete("model");
    const others = asked.searchParams.getAll("vs"); // the default model of a page is that of its folder: name it
    asked.searchParams.delete("vs");
    for (const other of others) asked.searchParams.append("vs", /(^|&)model=/.test(other) ? other : `model=${encodeURIComponent(standing)}&${other}`);
    const rest = asked.searchParams.toString();
    return write(data, title, new URL(`${encodeURIComponent(model)}/${rest ? `?${rest}` : ""}`, ROOT));
  };
  for (const way of ["replaceState", "pushState"]) history[way] = inFolder(history[way].bind(history));
  // The pages have a <base>, against which a bare fragment would lead to another page.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]'), target = link && document.getElementById(link.hash.slice(1));
    if (!target) return;
    event.preventDefault();
    target.scrollIntoView();
    target.focus();
  });
}
