/// <reference types="vitest/config" />
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig, type ProxyOptions } from "vite";

/** The development server adds a token to API requests, in place of the sign-in cookie. */
function developmentProxy(): Record<string, ProxyOptions> {
  const target = process.env.ATOLL_URL ?? "http://127.0.0.1:7700";
  const tokenFile = process.env.ATOLL_TOKEN_FILE;
  const token = tokenFile ? readFileSync(tokenFile, "utf8").trim() : "";
  const headers: Record<string, string> = { Origin: target, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const options: ProxyOptions = { target, changeOrigin: true, ws: true, headers, rewriteWsOrigin: true };
  return { "/api": options, "/metrics": options };
}

export default defineConfig({
  plugins: [react(), tailwindcss()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    target: "es2022",
    manifest: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 600,
  },
  server: { proxy: developmentProxy(), host: "127.0.0.1" },
  preview: { proxy: developmentProxy(), host: "127.0.0.1" },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}", "tests/**/*.test.ts"] },
});
