import { answerApproval, createSandbox, listEvents, openSandbox, removeSandbox, timeline } from "./browser";
import { expect, it } from "./fixtures";

// The scripts of the model are in `tests/tests/all/local/page.rs`.
it.skipIf(process.env.E2E_CLAUDE === undefined)("shows text of Claude Code while it writes it; interrupts, steers and approves it", async ({ openPage }) => {
  const page = await openPage();
  const id = await createSandbox(page, { agent: "claude", approvals: "ask", network: { policy: "none" }, prompt: "go #script:stream", title: "A real agent" });
  await openSandbox(page, id);
  await timeline(page).locator("strong", { hasText: "A long story" }).waitFor();
  await timeline(page).getByText("<img src=x onerror=alert(1)>").waitFor();
  await timeline(page).getByText(/piece [1-9]/).waitFor();
  // A page that opens in the middle shows the text that follows.
  await page.reload();
  await timeline(page).getByText(/piece \d/).waitFor();
  expect(await listEvents(page, id, "agent.message")).toEqual([]);

  await page.getByRole("button", { name: "Interrupt" }).click();
  await timeline(page).getByText("You interrupted the agent").waitFor();
  const box = page.getByLabel("Message to the agent");
  await box.fill("go on #script:work");
  await page.getByRole("button", { name: "Send", exact: true }).click();

  const approval = page.getByRole("region", { name: /^Approval:/ });
  await approval.getByText("echo approved > approved.txt").first().waitFor();
  await box.fill("Mind the gap.");
  await page.getByRole("button", { name: "Steer", exact: true }).click();
  await expect.poll(() => box.inputValue()).toBe("");
  await answerApproval(page, "Allow");
  // The model's script goes on only if its request contains the message.
  await timeline(page).getByText("I minded it.", { exact: true }).waitFor();
  await timeline(page).getByText("reached the agent during its turn").waitFor();
  await removeSandbox(page, id);
});
