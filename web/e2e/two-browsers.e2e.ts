import { answerApproval, createSandbox, openSandbox, removeSandbox, timeline } from "./browser";
import { it } from "./fixtures";

it("shows two browsers the same run, and one answer to an approval", async ({ openPage }) => {
  const [first, phone] = [await openPage(), await openPage({ viewport: { width: 390, height: 844 } })];
  const id = await createSandbox(first, { prompt: "say Both see this.\nask May I?\nsay Allowed for both.", title: "Seen by two" });
  for (const page of [first, phone]) {
    await openSandbox(page, id);
    await timeline(page).getByText("Both see this.", { exact: true }).waitFor();
  }
  await answerApproval(phone, "Allow");
  for (const page of [first, phone]) {
    await timeline(page).getByText("Allowed for both.", { exact: true }).waitFor();
    await page.locator("[data-approval]").waitFor({ state: "detached" });
  }
  await removeSandbox(first, id);
});
