import { openContext, SERVER } from "./browser";
import { expect, it } from "./fixtures";

it.skipIf(SERVER.token === null)("signs in by a link that works once, and signs out", async ({ browser, openPage }) => {
  const page = await openPage();
  const issued = await page.request.post("/api/v1/sign-in-links", { headers: { "X-Atoll-Page": "1" } });
  const { path } = (await issued.json()) as { path: string };

  const other = await openContext(browser, SERVER, { cookies: [], origins: [] });
  await other.page.goto("/");
  await other.page.getByRole("heading", { name: "Sign in to Atoll" }).waitFor();
  await other.page.goto(path);
  await other.page.getByRole("link", { name: "New sandbox" }).waitFor();
  expect(other.page.url()).not.toContain("code=");
  await other.page.goto("/settings?section=sign-in");
  await other.page.getByText("this browser", { exact: true }).waitFor();
  await other.page.getByRole("button", { name: "Sign out" }).click();
  await other.page.getByRole("heading", { name: "Sign in to Atoll" }).waitFor();

  await other.page.goto("about:blank");
  await other.page.goto(path);
  await other.page.getByText("A link works once").waitFor();
  expect(other.incidents).toEqual([]);
  await other.context.close();
});
