import { answerApproval, REPOSITORY, removeSandbox, timeline } from "./browser";
import { expect, it } from "./fixtures";

it("starts a task, watches it, steers, approves, interrupts, reviews, uses a terminal, exports the branch and replays", async ({ openPage }) => {
  const page = await openPage();
  await page.goto("/");

  // New task.
  await page.getByRole("link", { name: "New sandbox" }).click();
  await page.getByLabel("What should the agent do?").fill("say I look at the files.\nrun ls -la\nedit src/bye.rs pub fn bye() {}\nask May I run the tests?\nsay Thank you.\nwait 300");
  await page.getByLabel("Repository").fill(REPOSITORY);
  await page.getByLabel("Agent", { exact: true }).selectOption("demo");
  await page.getByText("Limits, network and more").click();
  await page.getByLabel("Title").fill("Say goodbye");
  await page.getByLabel("Keep the sandbox running").check();
  await page.getByRole("button", { name: "Start", exact: true }).click();

  // Watch.
  await timeline(page).getByText("I look at the files.", { exact: true }).waitFor();
  const id = new URL(page.url()).pathname.split("/")[2] ?? "";

  // Approve in place.
  const approval = page.getByRole("region", { name: /^Approval:/ });
  await approval.getByText("May I run the tests?").waitFor();
  await answerApproval(page, "Allow");
  await timeline(page).getByText("Thank you.", { exact: true }).waitFor();
  await timeline(page).getByText("Allowed").waitFor();

  // Steer: the agent gets the message in its turn.
  const box = page.getByLabel("Message to the agent");
  await box.fill("say I got your message.");
  await page.getByRole("button", { name: "Steer", exact: true }).click();
  await timeline(page).getByText("reached the agent during its turn").waitFor();
  expect(await box.inputValue()).toBe("");

  // Queue, then edit: the text returns to the message box and the message is gone.
  await box.fill("say later");
  await box.press("Alt+Enter");
  const queue = page.getByRole("region", { name: "Queued messages" });
  await queue.getByText("say later").waitFor();
  await queue.getByRole("button", { name: /^Edit/ }).click();
  await queue.waitFor({ state: "detached" });
  expect(await box.inputValue()).toBe("say later");
  await box.fill("");

  // Interrupt.
  await page.getByRole("button", { name: "Interrupt" }).click();
  await timeline(page).getByText("interrupted", { exact: false }).first().waitFor();
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();

  // Comment on a line of the diff; the comments go as one message.
  await page.getByRole("option", { name: /bye\.rs/ }).or(page.getByRole("region", { name: "Changes of src/bye.rs" })).first().waitFor();
  const diff = page.getByRole("region", { name: "Changes of src/bye.rs" });
  await diff.getByText("bye()").hover();
  await diff.getByRole("button", { name: "Comment on line 1" }).click();
  await page.getByRole("textbox", { name: "Comment" }).fill("say I renamed it.");
  await page.getByRole("button", { name: "Add comment" }).click();
  await page.getByRole("button", { name: "Send as one message" }).click();
  await timeline(page).getByText("A review comment on your changes:", { exact: false }).first().waitFor();
  await diff.getByText("Sent").waitFor();

  // Terminal.
  await page.getByRole("tab", { name: "Terminal" }).click();
  await page.getByRole("button", { name: "New shell" }).click();
  await page.locator("[data-terminal] .xterm-rows").getByText("$").first().waitFor();
  await page.keyboard.type("echo sum-$((40+2))\n");
  await page.locator("[data-terminal] .xterm-rows").getByText("sum-42").waitFor();

  // Branch.
  await page.getByRole("tab", { name: "Git" }).click();
  await page.getByRole("button", { name: "Export now" }).click();
  await page.getByText(/^Exported 1 commit/).waitFor();

  // Stop, then replay.
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await page.getByRole("link", { name: "Replay" }).click();
  await page.getByText("Recorded").waitFor();
  await page.getByRole("slider", { name: "Position" }).press("End");
  await timeline(page).getByText("Thank you.", { exact: true }).waitFor();
  await removeSandbox(page, id);
});
