// The same as serve_flows.py, for Node: `node serve_flows.cjs FLOWS.cjs` calls the functions of a file of flows.
// A line of standard input is {"flow", "arguments"}; its answer is one line, {"result"} or {"error"}.
"use strict";
const readline = require("node:readline");

function types(error) {
  const names = [];
  for (let kind = error.constructor; kind && kind.name; kind = Object.getPrototypeOf(kind)) names.push(kind.name);
  return names;
}

async function run(flow, args) {
  try {
    return { result: (await flow(args)) ?? null };
  } catch (error) {
    const { message, status = null, code = null, stack } = error;
    return { error: { types: types(error), message, status, code, detail: stack } };
  }
}

async function main() {
  const write = process.stdout.write.bind(process.stdout);
  console.log = console.error;
  const flows = require(require("node:path").resolve(process.argv[2]));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    write(JSON.stringify(await run(flows[asked.flow], asked.arguments)) + "\n");
  }
}

main();
