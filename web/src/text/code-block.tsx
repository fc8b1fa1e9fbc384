import { useState } from "react";
import { Check, Copy } from "lucide-react";
import { IconButton } from "@/components/button";
import { HighlightedCode } from "./highlighted-code";

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => {
    void navigator.clipboard.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => { setCopied(false); }, 1500);
    });
  };
  return (
    <IconButton label={isCopied ? "Copied" : label} size="small" onClick={copy}>
      {isCopied ? <Check size={14} aria-hidden /> : <Copy size={14} aria-hidden />}
    </IconButton>
  );
}

export function CodeBlock({ text, language }: { text: string; language: string | null }) {
  return (
    <div className="group relative my-3 rounded-md border border-line bg-raised">
      <div className="absolute top-1 right-1 rounded bg-raised opacity-0 group-hover:opacity-100 focus-within:opacity-100"><CopyButton text={text} label="Copy the code" /></div>
      <pre className="scroll-area max-h-120 px-3 py-2.5 font-mono text-code" tabIndex={0} aria-label="Code"><HighlightedCode text={text} language={language} /></pre>
    </div>
  );
}
