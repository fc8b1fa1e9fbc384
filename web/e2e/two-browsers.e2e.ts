import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { createSandbox, launchBrowser, openPage, openSandbox, removeSandbox, timeline } from "./browser";

let browser: Browser;
beforeAll(async () => { browser = await launchBrowser(); });
afterAll(async () => { await browser.close(); });

it.skipIf(process.env.E2E_CODE !== undefined)("shows two browsers the same run, and one answer to an approval", async () => {
  const [first, second] = [await openPage(browser), await openPage(browser, { viewport: { width: 390, height: 844 } })];
  const id = await createSandbox(first.page, { prompt: "say Both see this.\nask May I?\nsay Allowed for both.", title: "Seen by two" });
  for (const { page } of [first, second]) {
    await openSandbox(page, id);
    await timeline(page).getByText("Both see this.", { exact: true }).waitFor();
  }
  await second.page.locator('[data-approval] button:not([aria-disabled="true"])', { hasText: "Allow" }).click();
  for (const { page, incidents } of [first, second]) {
    await timeline(page).getByText("Allowed for both.", { exact: true }).waitFor();
    await page.locator("[data-approval]").waitFor({ state: "detached" });
    expect(incidents).toEqual([]);
  }
  await removeSandbox(first.page, id);
  await first.context.close();
  await second.context.close();
});
