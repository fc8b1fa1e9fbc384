import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["e2e/**/*.e2e.ts"],
    environment: "node",
    globalSetup: "e2e/shared-browser.ts",
    testTimeout: 60_000,
    hookTimeout: 60_000,
    pool: "threads",
    // The tests mostly wait for agents. Without isolation, a thread loads Playwright once.
    maxWorkers: 4,
    isolate: false,
    reporters: ["verbose"],
  },
});
