import { createHighlighterCore, type HighlighterCore } from "shiki/core";
import { createJavaScriptRegexEngine } from "shiki/engine/javascript";

export interface HighlightedToken {
  text: string;
  light: string;
  dark: string;
}
export type HighlightedLine = HighlightedToken[];

/** Grammars by name. Each is a file of its own that loads when it is first needed. */
const GRAMMARS = {
  bash: () => import("shiki/langs/bash.mjs"),
  c: () => import("shiki/langs/c.mjs"),
  csharp: () => import("shiki/langs/csharp.mjs"),
  css: () => import("shiki/langs/css.mjs"),
  diff: () => import("shiki/langs/diff.mjs"),
  docker: () => import("shiki/langs/docker.mjs"),
  go: () => import("shiki/langs/go.mjs"),
  html: () => import("shiki/langs/html.mjs"),
  java: () => import("shiki/langs/java.mjs"),
  json: () => import("shiki/langs/json.mjs"),
  kotlin: () => import("shiki/langs/kotlin.mjs"),
  lua: () => import("shiki/langs/lua.mjs"),
  make: () => import("shiki/langs/make.mjs"),
  markdown: () => import("shiki/langs/markdown.mjs"),
  php: () => import("shiki/langs/php.mjs"),
  python: () => import("shiki/langs/python.mjs"),
  ruby: () => import("shiki/langs/ruby.mjs"),
  rust: () => import("shiki/langs/rust.mjs"),
  sql: () => import("shiki/langs/sql.mjs"),
  swift: () => import("shiki/langs/swift.mjs"),
  toml: () => import("shiki/langs/toml.mjs"),
  tsx: () => import("shiki/langs/tsx.mjs"),
  typescript: () => import("shiki/langs/typescript.mjs"),
  xml: () => import("shiki/langs/xml.mjs"),
  yaml: () => import("shiki/langs/yaml.mjs"),
} as const;

type Grammar = keyof typeof GRAMMARS;

const ALIASES: Record<string, Grammar> = {
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", h: "c", cc: "c", cxx: "c", cpp: "c", hpp: "c", cs: "csharp", dockerfile: "docker",
  htm: "html", js: "tsx", mjs: "tsx", cjs: "tsx", jsx: "tsx", javascript: "tsx", kt: "kotlin", makefile: "make", mk: "make", md: "markdown",
  py: "python", rb: "ruby", rs: "rust", ts: "typescript", mts: "typescript", svg: "xml", yml: "yaml",
};

export function findGrammar(name: string): Grammar | null {
  const lower = name.toLowerCase();
  if (Object.hasOwn(GRAMMARS, lower)) return lower as Grammar;
  return ALIASES[lower] ?? null;
}

let core: Promise<HighlighterCore> | null = null;

function startHighlighter(): Promise<HighlighterCore> {
  core ??= createHighlighterCore({
    themes: [import("shiki/themes/github-light-default.mjs"), import("shiki/themes/github-dark-default.mjs")],
    langs: [],
    engine: createJavaScriptRegexEngine({ forgiving: true }),
  });
  return core;
}

/** Splits code into coloured tokens; `null` for a language without a grammar. */
export async function highlight(text: string, language: string): Promise<HighlightedLine[] | null> {
  const grammar = findGrammar(language);
  if (grammar === null) return null;
  const highlighter = await startHighlighter();
  if (!highlighter.getLoadedLanguages().includes(grammar)) await highlighter.loadLanguage(await GRAMMARS[grammar]());
  const themes = { light: "github-light-default", dark: "github-dark-default" };
  return highlighter.codeToTokensWithThemes(text, { lang: grammar, themes }).map((line) =>
    line.map((token) => ({ text: token.content, light: token.variants.light?.color ?? "inherit", dark: token.variants.dark?.color ?? "inherit" })),
  );
}
