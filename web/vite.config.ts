/// <reference types="vitest/config" />
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig, type ProxyOptions } from "vite";

/** The development server adds a token to API requests, in place of the sign-in cookie. */
function developmentProxy(): Record<string, ProxyOptions> {
  const target = process.env.PAGE_SERVER_URL ?? "http://127.0.0.1:7700";
  const tokenFile = process.env.PAGE_TOKEN_FILE;
  const token = tokenFile ? readFileSync(tokenFile, "utf8").trim() : "";
  const headers: Record<string, string> = { Origin: target, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const options: ProxyOptions = { target, changeOrigin: true, ws: true, headers, rewriteWsOrigin: true };
  return { "/api": options, "/metrics": options };
}

/** The policy that the server sends, so that `vite preview` shows what it blocks. */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'", "script-src 'self'", "connect-src 'self'", "worker-src 'self'", "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data: blob:", "frame-src http://*.localhost:*", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
].join("; ");

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
  preview: { proxy: developmentProxy(), host: "127.0.0.1", headers: { "Content-Security-Policy": CONTENT_SECURITY_POLICY } },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}", "tests/**/*.test.ts"] },
});
