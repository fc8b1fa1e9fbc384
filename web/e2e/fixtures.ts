import { expect, inject, test } from "vitest";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";
import { openContext, SERVER, signIn, type OpenedContext, type TestServer } from "./browser";

export { expect } from "vitest";

interface Fixtures {
  browser: Browser;
  /** Opens a browser context, signed in. At the end, it is closed and must have had no incident. */
  openPage: (options?: BrowserContextOptions, server?: TestServer) => Promise<Page>;
}

export const it = test.extend<Fixtures>({
  browser: [
    async ({}, provide) => {
      const browser = await chromium.connect(inject("browserAddress"));
      await provide(browser);
      await browser.close();
    },
    { scope: "file" },
  ],
  openPage: async ({ browser }, provide) => {
    const opened: OpenedContext[] = [];
    await provide(async (options = {}, server = SERVER) => {
      const state = server === SERVER ? inject("signInState") : await signIn(browser, server);
      const next = await openContext(browser, server, state, options);
      opened.push(next);
      return next.page;
    });
    for (const { context, incidents } of opened) {
      expect(incidents).toEqual([]);
      await context.close();
    }
  },
});
