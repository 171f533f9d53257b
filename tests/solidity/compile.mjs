// Compiles the contracts that standard input holds, {name: source}; prints {contract: code in hex}.
import { readFileSync } from "node:fs";
import solc from "solc";

const sources = Object.fromEntries(
  Object.entries(JSON.parse(readFileSync(0, "utf8"))).map(([name, content]) => [name, { content }]),
);
const settings = {
  evmVersion: "cancun",
  optimizer: { enabled: true, runs: 1 },
  outputSelection: { "*": { "*": ["evm.bytecode.object"] } },
};
const findImport = (path) => ({ contents: readFileSync(`node_modules/${path}`, "utf8") });
const input = JSON.stringify({ language: "Solidity", sources, settings });
const output = JSON.parse(solc.compile(input, { import: findImport }));
const errors = (output.errors ?? []).filter((error) => error.severity === "error");
if (errors.length) {
  console.error(errors.map((error) => error.formattedMessage).join("\n"));
  process.exit(1);
}
const own = Object.keys(sources).flatMap((name) => Object.entries(output.contracts[name] ?? {}));
console.log(JSON.stringify(Object.fromEntries(own.map(([name, made]) => [name, made.evm.bytecode.object]))));
