import { useState } from "react";
import { useNavigate } from "@tanstack/react-router";
import { api, unwrap } from "@/api/client";
import { Problem } from "@/api/problem";
import { keys, queryClient } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { Checkbox, Field, TextArea, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { Notice } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { storeRow } from "@/sandboxes/live-rows";
import { hasEnded } from "@/sandboxes/status";

export type ActionDialogKind = "stop" | "results" | "fork" | "snapshot" | "rename" | "remove";

interface ActionDialogProps {
  kind: ActionDialogKind;
  sandbox: Sandbox;
  onClose: () => void;
}

export function ActionDialog(props: ActionDialogProps) {
  switch (props.kind) {
    case "stop":
      return <StopDialog {...props} />;
    case "results":
      return <ResultsDialog {...props} />;
    case "fork":
      return <ForkDialog {...props} />;
    case "snapshot":
      return <SnapshotDialog {...props} />;
    case "rename":
      return <RenameDialog {...props} />;
    case "remove":
      return <RemoveDialog {...props} />;
  }
}

type DialogProps = Omit<ActionDialogProps, "kind">;

const pathOf = (sandbox: Sandbox) => ({ params: { path: { id: sandbox.id } } });

function StopDialog({ sandbox, onClose }: DialogProps) {
  const hasRepo = sandbox.settings.repo != null;
  const [takes, setTakes] = useState(true);
  return (
    <FormDialog
      title="Stop the sandbox"
      description="The agent ends. The event log stays, and the session can continue in a new sandbox."
      submit="Stop"
      isDanger
      onClose={onClose}
      onSubmit={async () => {
        storeRow(await unwrap(api.POST("/api/v1/sandboxes/{id}/stop", { ...pathOf(sandbox), body: { results: takes ? "take" : "discard" } })));
        reportSuccess(takes && hasRepo ? "Stopping. The results are exported as a branch." : "Stopping");
      }}
    >
      {hasRepo && <Checkbox label={`Export the results as the branch ${sandbox.branch ?? "of the session"}`} checked={takes} onChange={(event) => { setTakes(event.target.checked); }} />}
      {hasRepo && !takes && <Notice tone="attention">Changes that are not exported are lost.</Notice>}
    </FormDialog>
  );
}

function ResultsDialog({ sandbox, onClose }: DialogProps) {
  return (
    <FormDialog
      title="Export the results"
      description={hasEnded(sandbox) ? "The server exports what the sandbox left as a branch." : "The server commits the current work to the session's branch, between two tool calls. The agent continues."}
      submit="Export"
      onClose={onClose}
      onSubmit={async () => {
        const exported = await unwrap(api.POST("/api/v1/sandboxes/{id}/results", pathOf(sandbox)));
        storeRow(exported.sandbox);
        const branches = exported.taken.map((result) => result.branch).join(", ");
        reportSuccess(branches === "" ? "There are no changes to export" : `Exported the branch ${branches}`);
      }}
    />
  );
}

function ForkDialog({ sandbox, onClose }: DialogProps) {
  const navigate = useNavigate();
  const [prompt, setPrompt] = useState("");
  const [title, setTitle] = useState(sandbox.title ?? "");
  return (
    <FormDialog
      title="Fork the sandbox"
      description="A new sandbox with a copy of the current files, and a fork of the session. Processes are not copied."
      submit="Fork"
      onClose={onClose}
      onSubmit={async () => {
        const body = { title: title.trim() || null, prompt: prompt.trim() || null };
        const fork = await unwrap(api.POST("/api/v1/sandboxes/{id}/fork", { ...pathOf(sandbox), body }));
        storeRow(fork);
        await navigate({ to: "/sandboxes/$id", params: { id: fork.id } });
        reportSuccess("Forked. This is the new sandbox.");
      }}
    >
      <Field label="Title">{(control) => <TextInput {...control} value={title} onChange={(event) => { setTitle(event.target.value); }} />}</Field>
      <Field label="First message to the fork's agent" hint="Without one, the agent waits.">
        {(control) => <TextArea {...control} rows={4} value={prompt} onChange={(event) => { setPrompt(event.target.value); }} />}
      </Field>
    </FormDialog>
  );
}

function SnapshotDialog({ sandbox, onClose }: DialogProps) {
  const [name, setName] = useState("");
  return (
    <FormDialog
      title="Save a snapshot"
      description="New sandboxes can start from these files."
      submit="Save"
      canSubmit={name.trim() !== ""}
      onClose={onClose}
      onSubmit={async () => {
        const saved = await unwrap(api.POST("/api/v1/sandboxes/{id}/snapshot", { ...pathOf(sandbox), body: { name: name.trim() } }));
        reportSuccess(`Saved the snapshot ${saved.name}`);
      }}
    >
      <Field label="Name" hint="Lower-case letters, digits and dashes.">
        {(control) => <TextInput {...control} autoFocus value={name} onChange={(event) => { setName(event.target.value); }} />}
      </Field>
    </FormDialog>
  );
}

function RenameDialog({ sandbox, onClose }: DialogProps) {
  const [title, setTitle] = useState(sandbox.title ?? "");
  return (
    <FormDialog
      title="Rename the session"
      submit="Rename"
      canSubmit={title.trim() !== ""}
      onClose={onClose}
      onSubmit={async () => {
        await unwrap(api.PATCH("/api/v1/sessions/{id}", { params: { path: { id: sandbox.session_id } }, body: { title: title.trim() } }));
        await queryClient.invalidateQueries({ queryKey: keys.sandboxes });
        await queryClient.invalidateQueries({ queryKey: keys.sandbox(sandbox.id) });
      }}
    >
      <Field label="Title">{(control) => <TextInput {...control} autoFocus value={title} onChange={(event) => { setTitle(event.target.value); }} />}</Field>
    </FormDialog>
  );
}

function RemoveDialog({ sandbox, onClose }: DialogProps) {
  const navigate = useNavigate();
  const [isForced, setForced] = useState(false);
  const [isPending, setPending] = useState(sandbox.results === "pending");
  return (
    <FormDialog
      title="Remove the sandbox"
      description="It is stopped, and its files are deleted. The event log stays until retention removes it."
      submit="Remove"
      isDanger
      canSubmit={!isPending || isForced}
      onClose={onClose}
      onSubmit={async () => {
        try {
          const query = isForced ? { force: true } : {};
          const row = await unwrap(api.DELETE("/api/v1/sandboxes/{id}", { params: { path: { id: sandbox.id }, query } }));
          storeRow({ ...row, archived: true });
        } catch (failure) {
          if (failure instanceof Problem && failure.code === "results_pending") setPending(true);
          throw failure;
        }
        await navigate({ to: "/" });
        reportSuccess("Removed");
      }}
    >
      {isPending && (
        <>
          <Notice tone="attention">Its results are not exported. Export them first, or lose them.</Notice>
          <Checkbox label="Remove it and lose the results" checked={isForced} onChange={(event) => { setForced(event.target.checked); }} />
        </>
      )}
    </FormDialog>
  );
}
