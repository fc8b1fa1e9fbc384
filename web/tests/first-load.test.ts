// @vitest-environment node
import { existsSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, it } from "vitest";

interface ManifestEntry {
  file: string;
  isEntry?: boolean;
  imports?: string[];
}

const DIST = new URL("../dist/", import.meta.url);
const MANIFEST = new URL(".vite/manifest.json", DIST);
const MAX_FIRST_LOAD_BYTES = 400 * 1024;

/** The files that load before the first paint: the entry and what it imports statically. */
function firstLoad(manifest: Record<string, ManifestEntry>): Set<string> {
  const files = new Set<string>();
  const visit = (entry: ManifestEntry | undefined): void => {
    if (entry === undefined || files.has(entry.file)) return;
    files.add(entry.file);
    for (const name of entry.imports ?? []) visit(manifest[name]);
  };
  visit(Object.values(manifest).find((entry) => entry.isEntry === true));
  return files;
}

it.skipIf(!existsSync(MANIFEST))("loads less than 400 KB of script before the first paint", () => {
  const manifest = JSON.parse(readFileSync(MANIFEST, "utf8")) as Record<string, ManifestEntry>;
  const files = firstLoad(manifest);
  const bytes = [...files].reduce((sum, file) => sum + gzipSync(readFileSync(new URL(file, DIST)), { level: 9 }).length, 0);
  console.info(`first load: ${files.size} files, ${Math.round(bytes / 1024)} KB gzipped`);
  expect(bytes).toBeLessThan(MAX_FIRST_LOAD_BYTES);
});

it.skipIf(!existsSync(MANIFEST))("names no other origin", () => {
  const html = readFileSync(new URL("index.html", DIST), "utf8");
  expect(html).not.toMatch(/(src|href)="(https?:)?\/\//);
  expect(html).not.toMatch(/<script(?![^>]*\bsrc=)/);
});
