// Uploads, by button or dropped. Nothing changes when the server refuses a file.

import { Refused, upload as post } from "./api.js";

const UPLOADS = new Map(); // id -> description by the server

export const uploaded = (kind) => [...UPLOADS.values()].filter((file) => file.kind === kind);

export async function send(files) {
  const sent = [];
  const order = [...files].sort((a, b) => Number(a.name.startsWith("speculator")) - Number(b.name.startsWith("speculator")));
  for (const file of order) {
    const bank = sent.find((upload) => upload.kind === "acceptance");
    const upload = await post(kindOf(file.name), file, bank?.id);
    UPLOADS.set(upload.id, upload);
    if (bank && upload.kind === "acceptance") sent.splice(sent.indexOf(bank), 1);
    sent.push(upload);
  }
  return sent;
}

function kindOf(name) {
  const plain = name.toLowerCase();
  if (plain.startsWith("speculator") && plain.endsWith(".parquet")) return "speculator";
  if (/\.(parquet|csv|jsonl)$/.test(plain) || plain.endsWith(".acceptance.json")) return "acceptance";
  if (plain.endsWith(".routing.json")) return "routing";
  if (plain.endsWith(".json")) return "config";
  throw new Refused(`${name}: drop a config.json, a bank (.parquet, .csv, .jsonl) or a profile (.acceptance.json, .routing.json)`);
}

export function onDrop(overlay, take) {
  let depth = 0;
  const withFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => { if (withFiles(event)) { depth += 1; overlay.hidden = false; } });
  addEventListener("dragleave", (event) => { if (withFiles(event) && (depth -= 1) <= 0) { depth = 0; overlay.hidden = true; } });
  addEventListener("dragover", (event) => { if (withFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!withFiles(event)) return;
    event.preventDefault();
    depth = 0;
    overlay.hidden = true;
    take(event.dataTransfer.files);
  });
}
