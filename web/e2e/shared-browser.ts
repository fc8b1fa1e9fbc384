import { chromium } from "playwright-core";
import type { TestProject } from "vitest/node";
import { LAUNCH_OPTIONS, SERVER, signIn, type SignInState } from "./browser";

declare module "vitest" {
  interface ProvidedContext {
    browserAddress: string;
    signInState: SignInState;
  }
}

/** Starts the browser that all test files use, and signs it in once. */
export default async function start(project: TestProject): Promise<() => Promise<void>> {
  const server = await chromium.launchServer(LAUNCH_OPTIONS);
  const browser = await chromium.connect(server.wsEndpoint());
  project.provide("browserAddress", server.wsEndpoint());
  project.provide("signInState", await signIn(browser, SERVER));
  await browser.close();
  return () => server.close();
}
