import { expect, it } from "vitest";
import { formatInput, readRequest } from "./approval-request";

it("shows the whole command", () => {
  expect(formatInput("Bash", { command: "rm -rf build", description: "clean" })).toBe("rm -rf build");
  expect(formatInput("Bash", { command: "ls", extra: 1 })).toContain('"extra": 1');
});

it("reads the questions of an agent and ignores parts of another shape", () => {
  const request = readRequest({
    kind: "question",
    tool: "AskUserQuestion",
    input: { questions: [{ question: "Which?", multiSelect: true, options: [{ label: "A", description: "first" }, { label: 3 }, null] }, 7] },
  });
  expect(request.questions).toEqual([{ question: "Which?", allowsMany: true, options: [{ label: "A", description: "first" }] }]);
  expect(readRequest({ input: "x", tool: 4 }).questions).toEqual([]);
});
