import { memo, useMemo, type ComponentProps } from "react";
import { marked } from "marked";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import remend from "remend";
import { CodeBlock } from "./code-block";
import { splitDeceptive, safeUrl } from "./safe-text";

interface HastNode {
  type: string;
  value?: string;
  tagName?: string;
  properties?: Record<string, unknown>;
  children?: HastNode[];
}

/** Marks deceptive characters in all texts of a document. */
function markDeceptive() {
  const visit = (node: HastNode): void => {
    if (node.children === undefined) return;
    node.children = node.children.flatMap((child) => {
      visit(child);
      if (child.type !== "text" || child.value === undefined) return [child];
      const parts = splitDeceptive(child.value);
      if (parts.every((part) => part.mark === null)) return [child];
      return parts.map((part): HastNode =>
        part.mark === null
          ? { type: "text", value: part.text }
          : { type: "element", tagName: "mark", properties: {}, children: [{ type: "text", value: part.mark }] },
      );
    });
  };
  return visit;
}

function ExternalLink({ href, children }: { href: string | undefined; children: React.ReactNode }) {
  const url = href === undefined ? null : safeUrl(href);
  if (url === null) return <span title={href}>{children}</span>;
  return (
    <a href={url} title={url} target="_blank" rel="noopener noreferrer nofollow" className="text-accent underline underline-offset-2">
      {children}
    </a>
  );
}

const COMPONENTS: Components = {
  a: ({ href, children }) => <ExternalLink href={href}>{children}</ExternalLink>,
  // A remote image would tell its server what the agent read. It becomes a link.
  img: ({ src, alt }) => {
    const url = typeof src === "string" ? src : "";
    return <ExternalLink href={url}>{alt === undefined || alt === "" ? url : `Image: ${alt}`}</ExternalLink>;
  },
  mark: ({ children }) => <span className="rounded-[3px] bg-attention-tint px-[3px] font-mono text-[0.8em] text-attention">{children}</span>,
  pre: ({ children }) => <>{children}</>,
  code: ({ className, children }: ComponentProps<"code">) => {
    const text = flatten(children);
    const language = /language-(\S+)/.exec(className ?? "")?.[1] ?? null;
    if (language === null && !text.includes("\n")) {
      return <code className="rounded bg-sunk px-1 py-px font-mono text-[0.87em] [overflow-wrap:anywhere]">{children}</code>;
    }
    return <CodeBlock text={text.replace(/\n$/, "")} language={language} />;
  },
  input: ({ checked }) => <input type="checkbox" checked={checked ?? false} readOnly disabled aria-label={checked === true ? "Done" : "Not done"} className="mr-1.5" />,
  table: ({ children }) => (
    <div className="scroll-area my-3"><table className="border-collapse text-control">{children}</table></div>
  ),
  th: ({ children }) => <th className="border border-line bg-raised px-2.5 py-1 text-left font-semibold">{children}</th>,
  td: ({ children }) => <td className="border border-line px-2.5 py-1">{children}</td>,
};

function flatten(children: React.ReactNode): string {
  if (typeof children === "string") return children;
  if (Array.isArray(children)) return children.map((child: React.ReactNode) => flatten(child)).join("");
  if (typeof children === "object" && children !== null && "props" in children) {
    return flatten((children.props as { children?: React.ReactNode }).children);
  }
  return "";
}

const PROSE =
  "text-body max-w-[45rem] [overflow-wrap:anywhere] [&_p]:my-2 [&_ul]:my-2 [&_ul]:list-disc [&_ul]:pl-6 [&_ol]:my-2 [&_ol]:list-decimal [&_ol]:pl-6 [&_li]:my-0.5 [&_h1]:mt-4 [&_h1]:mb-1 [&_h1]:text-title [&_h1]:font-semibold [&_h2]:mt-4 [&_h2]:mb-1 [&_h2]:text-title [&_h2]:font-semibold [&_h3]:mt-3 [&_h3]:mb-1 [&_h3]:font-semibold [&_h4]:mt-3 [&_h4]:font-semibold [&_blockquote]:my-2 [&_blockquote]:border-l-2 [&_blockquote]:border-line [&_blockquote]:pl-3 [&_blockquote]:text-muted [&_hr]:my-4 [&_hr]:border-line [&_strong]:font-semibold [&>:first-child]:mt-0 [&>:last-child]:mb-0";

const MarkdownBlock = memo(function MarkdownBlock({ text }: { text: string }) {
  return (
    <ReactMarkdown remarkPlugins={[remarkGfm]} rehypePlugins={[markDeceptive]} components={COMPONENTS} urlTransform={(url) => safeUrl(url) ?? ""}>
      {text}
    </ReactMarkdown>
  );
});

/** Markdown of an agent. HTML in it stays text. */
export const Markdown = memo(function Markdown({ text }: { text: string }) {
  return <div className={PROSE}><MarkdownBlock text={text} /></div>;
});

/** Markdown that is still being written: only its last block is parsed again. */
export function LiveMarkdown({ text }: { text: string }) {
  const blocks = useMemo(() => marked.lexer(text).map((token) => token.raw), [text]);
  return (
    <div className={PROSE}>
      {blocks.map((block, index) => <MarkdownBlock key={index} text={index === blocks.length - 1 ? remend(block) : block} />)}
    </div>
  );
}
