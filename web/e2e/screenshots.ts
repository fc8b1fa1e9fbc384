/**
 * Makes the screenshots from a real run: `E2E_URL=… E2E_REPO=… npm run screenshots [DIRECTORY]`.
 *
 * The server needs no other sandboxes: the script creates its own with the demo agent and removes them.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { BASE_URL, createSandbox, launchBrowser, openPage, openSandbox, removeSandbox, timeline, waitForPanel } from "./browser";

const DIRECTORY = process.argv[2] ?? "e2e/screenshots";
const WIDTHS = [1440, 1024, 390] as const;
const THEMES = ["light", "dark"] as const;

const TASKS = [
  { title: "Fix the typo in the README", prompt: "say I fix the typo.\nedit README.md # Sample project\nsay Done." },
  { title: "Explore the code base", prompt: "say I looked around. The entry point is **main.rs**; the modules in `src/deep` are small and have no tests yet." },
  {
    title: "Make the parser faster",
    prompt: "say I read the parser first.\nrun cat main.rs\nrun ls -la src/deep\nrun git log --oneline\nrun wc -l main.rs\nsay The parser reads each line twice. I change it to `split_once`.\nedit src/parser.rs pub fn parse(line: &str) -> Option<(&str, &str)> { line.split_once('=') }\nrun printf '\\033[32mok\\033[0m  parser::empty_line\\n\\033[32mok\\033[0m  parser::two_fields\\n2 passed\\n'\nsay Both tests pass.\nwait 600",
  },
  {
    title: "Add a way to say goodbye",
    prompt: "say I look at the greeting first.\nrun cat main.rs\nedit src/goodbye.rs pub fn goodbye(name: &str) -> String { format!(\"Goodbye, {name}!\") }\nsay I added `goodbye` next to the greeting. Before I go on, I want to run the whole test suite:\nask May I run `cargo test --workspace`?",
  },
] as const;

async function capture(page: Page, name: string, width: number, theme: string): Promise<void> {
  // Fonts and colours of code settle in the next frames.
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => { requestAnimationFrame(done); }); }));
  await page.screenshot({ path: join(DIRECTORY, `${name}-${width}-${theme}.png`) });
}

async function captureAll(browser: Browser, ids: readonly string[], width: number, theme: "light" | "dark"): Promise<void> {
  const [done, , working, asking] = ids;
  const isPhone = width < 500;
  const { page, context } = await openPage(browser, { viewport: { width, height: isPhone ? 844 : 900 }, colorScheme: theme, reducedMotion: "reduce", isMobile: isPhone, hasTouch: isPhone });
  const shoot = (name: string) => capture(page, name, width, theme);
  for (const [name, path, text] of [
    ["home", "/", "Make the parser faster"], ["new", "/new", "Agent"], ["approvals", "/approvals", "asks for approval"], ["monitor", "/monitor", "Workers connected"],
    ["projects", "/projects", "default"], ["settings", "/settings", "Can:"],
  ] as const) {
    await page.goto(BASE_URL + path);
    await page.getByText(text).first().waitFor();
    await shoot(name);
  }
  await openSandbox(page, asking ?? "");
  await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();
  // The buttons are inert at first.
  await page.locator('[data-approval] button:not([aria-disabled="true"])', { hasText: "Allow" }).waitFor();
  await shoot("sandbox-approval");
  await openSandbox(page, working ?? "", isPhone ? "timeline" : "changes");
  await timeline(page).getByText("Both tests pass.", { exact: true }).waitFor();
  if (!isPhone) await waitForPanel(page, "changes");
  await shoot("sandbox-changes");
  for (const tab of ["terminal", "files", "preview", "git", "events", "details"]) {
    await openSandbox(page, working ?? "", tab);
    await waitForPanel(page, tab);
    await shoot(`sandbox-${tab}`);
  }
  await page.goto(`${BASE_URL}/sandboxes/${done ?? ""}/replay`);
  await page.getByRole("slider", { name: "Position" }).press("End");
  await timeline(page).getByText("Done.", { exact: true }).waitFor();
  await shoot("replay");
  await context.close();
}

mkdirSync(DIRECTORY, { recursive: true });
const browser = await launchBrowser();
const { page } = await openPage(browser);
const ids: string[] = [];
for (const task of TASKS) ids.push(await createSandbox(page, task));
try {
  for (const theme of THEMES) for (const width of WIDTHS) await captureAll(browser, ids, width, theme);
} finally {
  for (const id of ids) await removeSandbox(page, id);
  await browser.close();
}
