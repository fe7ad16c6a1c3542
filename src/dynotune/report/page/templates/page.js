"use strict";
// The only script of a report: a button copies the lines beside it. Without it, they can be selected.
for (const button of document.querySelectorAll("button.copy")) {
  const lines = button.parentElement.querySelector("pre");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(lines);
    try {
      await navigator.clipboard.writeText(lines.textContent);
    } catch {
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
