import { useRef, useState } from "react";
import { ChevronLeft, Download, FolderTree, RefreshCw, Trash2, Upload } from "lucide-react";
import type { Sandbox, SandboxFile } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { FormDialog } from "@/components/form-dialog";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { hasEnded } from "@/sandboxes/status";
import { HighlightedCode } from "@/text/highlighted-code";
import { formatAge, formatBytes, plural } from "@/text/format";
import { languageOf } from "@/text/language";
import { SafeText } from "@/text/safe-text-view";
import { useNow } from "@/shell/clock";
import { deleteFile, downloadDirectoryUrl, downloadUrl, joinPath, MAX_SHOWN_BYTES, refreshFiles, useFileContent, writeFile } from "./file-queries";
import { FileTree } from "./file-tree";

interface Chosen {
  path: string;
  file: SandboxFile;
}

/** The files of the workspace: tree, view, edit, upload, download. */
export function FilesPanel({ sandbox }: { sandbox: Sandbox }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [isDeleting, setDeleting] = useState(false);
  const upload = useRef<HTMLInputElement>(null);
  const uploading = useAction("Not uploaded");
  if (hasEnded(sandbox)) {
    return <EmptyState icon={<FolderTree size={28} />} title="The files are gone">The sandbox has ended. Its results are in Git, and each edit is in Changes.</EmptyState>;
  }
  if (sandbox.state !== "running") return <EmptyState icon={<FolderTree size={28} />} title="The sandbox is not running yet">The files appear when it has started.</EmptyState>;

  const directory = chosen === null ? "" : chosen.file.kind === "directory" ? chosen.path : chosen.path.split("/").slice(0, -1).join("/");
  const openFile = chosen !== null && chosen.file.kind !== "directory" ? chosen : null;
  const send = (files: FileList | null) => {
    if (files === null || files.length === 0) return;
    void uploading.run(async () => {
      for (const file of files) await writeFile(sandbox.id, joinPath(directory, file.name), file);
      reportSuccess(`Uploaded ${plural(files.length, "file")} to ${directory === "" ? "the workspace" : directory}`);
    });
  };

  return (
    <div className="@container flex min-h-0 flex-1 flex-col">
      <div className="flex min-h-11 shrink-0 items-center gap-1 border-b border-line px-3 max-md:min-h-12">
        <span className="min-w-0 flex-1 truncate text-control text-muted" title={directory}>{directory === "" ? "Workspace" : <SafeText text={directory} />}</span>
        <input ref={upload} type="file" multiple hidden onChange={(event) => { send(event.target.files); event.target.value = ""; }} />
        <Button size="small" tone="quiet" isBusy={uploading.isBusy} icon={<Upload size={15} aria-hidden />} onClick={() => upload.current?.click()}>Upload</Button>
        <a href={downloadDirectoryUrl(sandbox.id, directory)} download className="inline-flex h-7 items-center gap-1.5 rounded-md px-2 text-control font-semibold text-muted hover:bg-sunk hover:text-text max-md:h-9"><Download size={15} aria-hidden />Download as tar</a>
        {chosen !== null && <IconButton label={`Delete ${chosen.path}`} size="small" onClick={() => { setDeleting(true); }}><Trash2 size={15} aria-hidden /></IconButton>}
        <IconButton label="Load again" size="small" onClick={() => { refreshFiles(sandbox.id); }}><RefreshCw size={15} aria-hidden /></IconButton>
      </div>
      <div className="flex min-h-0 flex-1">
        <div className={`scroll-area min-h-0 py-1 @2xl:block @2xl:w-60 @2xl:shrink-0 @2xl:border-r @2xl:border-line ${openFile === null ? "w-full" : "hidden"}`}>
          <FileTree sandboxId={sandbox.id} path="" depth={0} current={chosen?.path ?? null} onChoose={(path, file) => { setChosen({ path, file }); }} />
        </div>
        {openFile === null ? (
          <div className="hidden min-w-0 flex-1 @2xl:block"><EmptyState title="Choose a file">Its content is shown here.</EmptyState></div>
        ) : (
          <FileView key={openFile.path} sandboxId={sandbox.id} {...openFile} onBack={() => { setChosen(null); }} />
        )}
      </div>
      {isDeleting && chosen !== null && (
        <FormDialog
          title={`Delete ${chosen.file.name}`}
          description={chosen.file.kind === "directory" ? "The directory is deleted with all its files." : "The file is deleted in the sandbox."}
          submit="Delete"
          isDanger
          onClose={() => { setDeleting(false); }}
          onSubmit={async () => {
            await deleteFile(sandbox.id, chosen.path);
            setChosen(null);
          }}
        />
      )}
    </div>
  );
}

function FileView({ sandboxId, path, file, onBack }: Chosen & { sandboxId: string; onBack: () => void }) {
  const content = useFileContent(sandboxId, path, file.size);
  const [draft, setDraft] = useState<string | null>(null);
  const saving = useAction("Not saved");
  const now = useNow(5);
  const save = () => {
    if (draft === null) return;
    void saving.run(async () => {
      await writeFile(sandboxId, path, draft);
      setDraft(null);
      reportSuccess(`Saved ${path}`);
    });
  };
  const text = content.data?.text ?? null;
  return (
    <div className="flex min-h-0 min-w-0 flex-1 flex-col">
      <div className="flex min-h-10 shrink-0 items-center gap-2 border-b border-line bg-raised px-3 py-1">
        <IconButton label="Back to the tree" size="small" className="@2xl:hidden" onClick={onBack}><ChevronLeft size={16} aria-hidden /></IconButton>
        <div className="min-w-0 flex-1">
          <h3 className="truncate font-mono text-code" title={path}><SafeText text={path} /></h3>
          <p className="text-meta text-muted">{formatBytes(file.size)} · {file.mode} · changed {formatAge(file.modified_at, now)}</p>
        </div>
        {draft !== null ? (
          <>
            <Button size="small" onClick={() => { setDraft(null); }}>Discard</Button>
            <Button size="small" tone="primary" isBusy={saving.isBusy} onClick={save}>Save</Button>
          </>
        ) : (
          <>
            {text !== null && file.kind === "file" && <Button size="small" onClick={() => { setDraft(text); }}>Edit</Button>}
            <a href={downloadUrl(sandboxId, path)} download={file.name} title="Download" aria-label="Download" className="flex size-7 items-center justify-center rounded-md text-muted hover:bg-sunk max-md:size-9"><Download size={15} aria-hidden /></a>
          </>
        )}
      </div>
      {content.error !== null && <div className="p-3"><FailureNotice failure={content.error} onRetry={() => void content.refetch()} /></div>}
      {file.size > MAX_SHOWN_BYTES ? (
        <EmptyState title="The file is too large to show">It has {formatBytes(file.size)}. Download it.</EmptyState>
      ) : content.data === undefined && content.error === null ? (
        <Skeleton lines={6} label="Loading the file" />
      ) : draft !== null ? (
        <textarea aria-label={`Content of ${path}`} spellCheck={false} value={draft} onChange={(event) => { setDraft(event.target.value); }} className="min-h-0 flex-1 resize-none bg-bg p-3 font-mono text-code outline-offset-[-2px]" />
      ) : text !== null ? (
        <pre tabIndex={0} aria-label={`Content of ${path}`} className="scroll-area min-h-0 flex-1 p-3 font-mono text-code">{text === "" ? <span className="text-muted">The file is empty.</span> : <HighlightedCode text={text} language={languageOf(path)} />}</pre>
      ) : content.data !== undefined ? (
        <EmptyState title="Not a text file">Download it to see it.</EmptyState>
      ) : null}
    </div>
  );
}
