import type { Page } from "playwright-core";
import { answerApproval, createSandbox, openSandbox, removeSandbox, timeline } from "./browser";
import { expect, it } from "./fixtures";

it("works by keyboard, and keeps, reorders and cancels queued messages", async ({ openPage }) => {
  const page = await openPage();
  const id = await createSandbox(page, { prompt: "say At work.\nwait 300", title: "Use the keyboard" });
  await page.goto("/");
  await page.getByRole("link", { name: "Use the keyboard" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("m");
  await page.getByRole("heading", { name: "Monitor" }).waitFor();
  await page.keyboard.press("Control+K");
  await page.getByRole("combobox", { name: "Find a sandbox or an action" }).fill("use keyboard");
  await page.getByRole("option", { name: /Use the keyboard/ }).waitFor();
  await page.keyboard.press("Enter");
  await timeline(page).getByText("At work.", { exact: true }).waitFor();

  // The message box says what Enter does; Alt+Enter queues.
  await page.keyboard.press("i");
  await page.getByText("Enter: steer.").waitFor();
  const queue = page.getByRole("region", { name: "Queued messages" });
  for (const text of ["say first", "say second", "say third"]) {
    await page.keyboard.type(text);
    await page.keyboard.press("Alt+Enter");
    await queue.getByText(text).waitFor();
  }
  const texts = () => queue.getByRole("listitem").locator("p:first-child").allTextContents();
  await queue.getByRole("listitem").nth(2).getByRole("button", { name: "Move up" }).click();
  await expect.poll(texts).toEqual(["say first", "say third", "say second"]);
  await queue.getByRole("listitem").nth(0).getByRole("button", { name: "Cancel the message" }).click();
  await expect.poll(texts).toEqual(["say third", "say second"]);

  // A draft survives a reload; the interrupt delivers what is queued, in order.
  await page.getByLabel("Message to the agent").fill("not sent yet");
  await expect.poll(() => page.evaluate(() => Object.values(localStorage).includes("not sent yet"))).toBe(true);
  await page.reload();
  await expect.poll(() => page.getByLabel("Message to the agent").inputValue()).toBe("not sent yet");
  await page.keyboard.press("Control+.");
  await timeline(page).getByText("second", { exact: true }).waitFor();
  const said = await timeline(page).getByText(/^(first|second|third)$/).allTextContents();
  expect(said).toEqual(["third", "second"]);
  await removeSandbox(page, id);
});

async function boxOf(page: Page, name: string): Promise<{ bottom: number; height: number }> {
  const box = await page.getByRole("button", { name, exact: true }).first().boundingBox();
  return { bottom: (box?.y ?? Infinity) + (box?.height ?? 0), height: box?.height ?? 0 };
}

it("notifies on a phone, where one thumb approves and steers", async ({ openPage }) => {
  const page = await openPage({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, permissions: ["notifications"] });
  // Records what the page shows, as a hidden page.
  await page.addInitScript(() => {
    const scope = globalThis as unknown as { shown: string[] };
    scope.shown = [];
    localStorage.setItem("atoll.notifications", "on");
    Object.defineProperty(document, "hidden", { get: () => localStorage.getItem("hidden") === "yes" });
    globalThis.Notification = class extends Notification {
      constructor(title: string, options?: NotificationOptions) {
        super(title, options);
        scope.shown.push(title);
      }
    };
  });
  await page.goto("/");
  await page.getByRole("link", { name: "New sandbox" }).waitFor();
  await page.evaluate(() => { localStorage.setItem("hidden", "yes"); });
  const id = await createSandbox(page, { prompt: "wait 2\nask May I?\nsay Thank you.\nwait 300", title: "Needs a thumb" });
  await expect.poll(() => page.evaluate(() => (globalThis as unknown as { shown: string[] }).shown), { timeout: 30_000 }).toContain("Needs a thumb");
  await page.evaluate(() => { localStorage.removeItem("hidden"); });
  expect(await page.title()).toMatch(/^\(\d+\)/);

  await openSandbox(page, id);
  await page.getByRole("region", { name: /^Approval:/ }).waitFor();
  for (const name of ["Allow", "Deny"]) {
    const { bottom, height } = await boxOf(page, name);
    expect(bottom).toBeLessThanOrEqual(844);
    expect(height).toBeGreaterThanOrEqual(40);
  }
  await answerApproval(page, "Allow");
  await timeline(page).getByText("Thank you.", { exact: true }).waitFor();
  await page.getByLabel("Message to the agent").fill("say Steered by thumb.");
  const steer = await boxOf(page, "Steer");
  expect(steer.bottom).toBeLessThanOrEqual(844);
  expect(steer.height).toBeGreaterThanOrEqual(44);
  await page.getByRole("button", { name: "Steer", exact: true }).tap();
  await timeline(page).getByText("Steered by thumb.", { exact: true }).waitFor();
  // Nothing is wider than the screen.
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  await removeSandbox(page, id);
});
