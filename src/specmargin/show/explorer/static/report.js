// The report link: shows how many figures are drawn while the server writes the report, then saves the file.

const link = document.getElementById("report");
const hex = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

function save(blob) {
  const made = document.createElement("a");
  made.href = URL.createObjectURL(blob);
  made.download = "report.html";
  made.click();
  setTimeout(() => URL.revokeObjectURL(made.href), 60_000);
}

async function written(address, show) {
  const job = hex();
  const progress = new URL(address.href);
  progress.pathname += "/progress";
  progress.search = `?job=${job}`;
  address.searchParams.set("job", job);
  const timer = setInterval(async () => {
    const reply = await fetch(progress).then((answer) => answer.json()).catch(() => null);
    if (reply?.total) show(reply);
  }, 300);
  try {
    const reply = await fetch(address);
    if (!reply.ok) throw new Error((await reply.json()).error);
    return await reply.blob();
  } finally {
    clearInterval(timer);
  }
}

async function start() {
  const label = link.textContent;
  const bar = document.createElement("progress");
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  bar.setAttribute("aria-label", "Writing the report");
  link.setAttribute("aria-busy", "true");
  document.getElementById("report-progress")?.remove();
  const box = document.createElement("span");
  box.id = "report-progress";
  box.append(bar, " ", said);
  link.after(" ", box);
  said.textContent = "Writing the report …";
  try {
    save(await written(new URL(link.href), ({ done, total }) => {
      Object.assign(bar, { value: done, max: total });
      said.textContent = `Figure ${Math.min(done + 1, total)} of ${total}`;
    }));
    box.remove();
  } catch (error) {
    bar.remove();
    said.setAttribute("role", "alert");
    said.textContent = `No report: ${error.message}`;
  } finally {
    link.removeAttribute("aria-busy");
    link.textContent = label;
  }
}

link?.addEventListener("click", (event) => {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return; // the browser opens or saves the link itself
  event.preventDefault();
  if (!link.hasAttribute("aria-busy")) start();
});
