import { useState } from "react";
import { ChevronRight, File, FileSymlink, Folder, FolderOpen } from "lucide-react";
import { FailureNotice } from "@/components/notice";
import type { SandboxFile } from "@/api/types";
import { SafeText } from "@/text/safe-text-view";
import { joinPath, useDirectory } from "./file-queries";

interface FileTreeProps {
  sandboxId: string;
  path: string;
  depth: number;
  current: string | null;
  onChoose: (path: string, file: SandboxFile) => void;
}

/** One directory of the tree. Directories load when they are opened. */
export function FileTree({ sandboxId, path, depth, current, onChoose }: FileTreeProps) {
  const directory = useDirectory(sandboxId, path, true);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const indent = { paddingLeft: 10 + depth * 14 };
  if (directory.error !== null) return <div className="p-2"><FailureNotice failure={directory.error} onRetry={() => void directory.refetch()} /></div>;
  if (directory.data === undefined) return <p style={indent} className="py-1 text-meta text-muted">Loading…</p>;
  if (directory.data.length === 0) return <p style={indent} className="py-1 text-meta text-muted">Empty</p>;
  return (
    <ul>
      {directory.data.map((file) => {
        const full = joinPath(path, file.name);
        const isDirectory = file.kind === "directory";
        const isOpen = open.has(file.name);
        const toggle = () => {
          const next = new Set(open);
          if (!next.delete(file.name)) next.add(file.name);
          setOpen(next);
        };
        const Icon = isDirectory ? (isOpen ? FolderOpen : Folder) : file.kind === "link" ? FileSymlink : File;
        return (
          <li key={file.name}>
            <button
              type="button"
              aria-expanded={isDirectory ? isOpen : undefined}
              aria-current={full === current ? "true" : undefined}
              onClick={() => { if (isDirectory) toggle(); onChoose(full, file); }}
              style={indent}
              className="flex h-7 w-full items-center gap-1.5 pr-2 text-left text-control hover:bg-sunk aria-[current]:bg-accent-tint max-md:h-11"
            >
              <ChevronRight size={13} className={`shrink-0 text-muted ${isDirectory ? (isOpen ? "rotate-90" : "") : "invisible"}`} aria-hidden />
              <Icon size={15} className="shrink-0 text-muted" aria-hidden />
              <span className="min-w-0 truncate"><SafeText text={file.name} /></span>
            </button>
            {isDirectory && isOpen && <FileTree sandboxId={sandboxId} path={full} depth={depth + 1} current={current} onChoose={onChoose} />}
          </li>
        );
      })}
    </ul>
  );
}
