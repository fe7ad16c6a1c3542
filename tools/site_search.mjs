// Ask the site's own search worker, as the page does: node site_search.mjs SITE < queries.json > results.json
import { readFileSync, readdirSync } from "node:fs";
import vm from "node:vm";

const [site] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const [name] = readdirSync(workers).filter((file) => /^search.*\.js$/.test(file));
let answer, ask;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => { ask = listener; };
globalThis.postMessage = (message) => { answer(message); };
vm.runInThisContext(readFileSync(`${workers}/${name}`, "utf8"));
const asked = (message) => new Promise((resolve) => { answer = resolve; ask({ data: message }); });

const index = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
await asked({ type: 0, data: { ...index, options: { suggest: true } } });
const found = {};
for (const query of JSON.parse(readFileSync(0, "utf8"))) {
  const { data } = await asked({ type: 2, data: query });
  // One group a page, in the order in which the page lists them.
  found[query] = data.items.map(([first]) => first.location.split("#")[0]);
}
console.log(JSON.stringify(found));
