import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser, WebSocketRoute } from "playwright-core";
import { createSandbox, launchBrowser, openPage, openSandbox, removeSandbox, timeline } from "./browser";

let browser: Browser;
beforeAll(async () => { browser = await launchBrowser(); });
afterAll(async () => { await browser.close(); });

// The demo agent does not stream. The test adds live frames to the frames of the server.
it("shows text while the agent writes it, and replaces it by the message", async () => {
  const { page, context, incidents } = await openPage(browser);
  const id = await createSandbox(page, { prompt: "say Before.\nwait 300", title: "Live text" });
  let toPage: WebSocketRoute | null = null;
  await page.routeWebSocket(/\/api\/v1\/events\/ws/, (route) => {
    route.connectToServer();
    toPage = route;
  });
  await openSandbox(page, id);
  await timeline(page).getByText("Before.", { exact: true }).waitFor();
  await page.getByText("Working", { exact: true }).first().waitFor();
  const send = (text: string) => { toPage?.send(JSON.stringify({ type: "live", sandbox_id: id, after_seq: 1_000_000, data: { text } })); };
  send("I am **writ");
  await timeline(page).getByText("writ").waitFor();
  send("ing** this <img src=x onerror=alert(1)> now.");
  await timeline(page).getByText("this <img src=x onerror=alert(1)> now.").waitFor();
  expect(await timeline(page).locator("strong", { hasText: "writing" }).count()).toBe(1);

  // A message of the agent ends the live text.
  await page.getByLabel("Message to the agent").fill("say The whole text.");
  await page.getByRole("button", { name: "Steer", exact: true }).click();
  await timeline(page).getByText("The whole text.", { exact: true }).waitFor();
  await timeline(page).locator("strong", { hasText: "writing" }).waitFor({ state: "detached" });
  expect(incidents).toEqual([]);
  await removeSandbox(page, id);
  await context.close();
});
