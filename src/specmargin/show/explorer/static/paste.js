// One box for a model: a Hugging Face id, its address, a name, or the text of a config.json.

import { resolve } from "./api.js";
import { byId, element } from "./dom.js";
import { send } from "./files.js";
import { hideTip } from "./glossary.js";

// `{ config }` for a text in braces, else `{ name }`: of an address, its first two parts.
export function read(text) {
  const plain = text.trim();
  if (plain.startsWith("{")) return { config: plain };
  const [, path] = /^(?:https?:\/\/)?(?:www\.)?(?:huggingface\.co|hf\.co)\/(?:api\/models\/|models\/)?([^?#]+)/.exec(plain) ?? [];
  return { name: path ? path.split("/").slice(0, 2).join("/") : plain };
}

async function found(text) {
  const { config, name } = read(text);
  if (config === undefined) return resolve(name);
  const [file] = await send([new File([config], "config.json", { type: "application/json" })]);
  return { model: `upload:${file.id}`, summary: file.summary };
}

// `take({ model, summary })`; `refused(error)` for what is not known: see `tellPaste`.
export function onPaste(take, refused) {
  const box = byId("paste");
  const use = async (text) => {
    if (!text.trim()) return;
    tellPaste("");
    try {
      take(await found(text));
      box.value = "";
    } catch (error) {
      refused(error);
    }
  };
  box.addEventListener("input", (event) => event.stopPropagation()); // not a control of the scenario
  box.addEventListener("change", (event) => { event.stopPropagation(); use(box.value); });
  box.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text") ?? "";
    if (!text.trim() || box.value.trim()) return; // into what is typed: as usual
    event.preventDefault();
    box.value = text.trim().startsWith("{") ? "" : text.trim();
    use(text);
  });
}

// `command`: what to run instead, to be copied. The explanation of the box would cover it.
export function tellPaste(text, command = null) {
  if (text) hideTip();
  byId("paste-note").replaceChildren(text, ...(command ? [element("code", {}, command)] : []));
}
