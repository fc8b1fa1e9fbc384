import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { KeyRound, Plus, Trash2 } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { keys, queryClient } from "@/api/queries";
import type { Secret } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Field, TextArea, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { FailureNotice } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useNow } from "@/shell/clock";
import { formatAge } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";

const SECRETS_KEY = ["secrets"] as const;

/** The names of secrets, with their use. Values can be written and never read. */
export function SecretList({ projectId }: { projectId?: string }) {
  const secrets = useQuery({
    queryKey: [...SECRETS_KEY, projectId ?? "all"],
    queryFn: async () => (await unwrap(api.GET("/api/v1/secrets", { params: { query: { limit: 200, ...(projectId === undefined ? {} : { project_id: projectId }) } } }))).items,
  });
  const [isAdding, setAdding] = useState(false);
  const [removed, setRemoved] = useState<Secret | null>(null);
  return (
    <div className="flex flex-col gap-3">
      {secrets.error !== null && <FailureNotice failure={secrets.error} onRetry={() => void secrets.refetch()} />}
      {secrets.data?.length === 0 && <p className="text-control text-muted">No secrets yet.</p>}
      <ul className="flex flex-col">{secrets.data?.map((secret) => <SecretLine key={secret.id} secret={secret} onRemove={() => { setRemoved(secret); }} />)}</ul>
      <div><Button icon={<Plus size={15} aria-hidden />} onClick={() => { setAdding(true); }}>Add or replace a secret</Button></div>
      {isAdding && <SecretForm projectId={projectId} onClose={() => { setAdding(false); }} />}
      {removed !== null && (
        <FormDialog
          title={`Remove ${removed.name}`}
          description="Running sandboxes keep its variable until they end."
          submit="Remove"
          isDanger
          onClose={() => { setRemoved(null); }}
          onSubmit={async () => {
            const query = removed.project_id == null ? {} : { project_id: removed.project_id };
            await unwrap(api.DELETE("/api/v1/secrets/{name}", { params: { path: { name: removed.name }, query } }));
            await refreshSecrets();
          }}
        />
      )}
    </div>
  );
}

async function refreshSecrets(): Promise<void> {
  await Promise.all([queryClient.invalidateQueries({ queryKey: SECRETS_KEY }), queryClient.invalidateQueries({ queryKey: keys.agents })]);
}

function SecretLine({ secret, onRemove }: { secret: Secret; onRemove: () => void }) {
  const now = useNow(10);
  const uses = [
    ...(secret.upstreams.length > 0 ? [`key of ${secret.upstreams.join(", ")}`] : []),
    ...(secret.expose == null ? [] : [`in sandboxes as $${secret.expose}`]),
    ...(secret.expose_file == null ? [] : [`in sandboxes as ~/${secret.expose_file}`]),
  ];
  return (
    <li className="flex items-center gap-3 border-b border-line py-2 last:border-b-0">
      <KeyRound size={15} className="shrink-0 text-muted" aria-hidden />
      <div className="min-w-0 flex-1">
        <p className="truncate font-mono text-code"><SafeText text={secret.name} /></p>
        <p className="text-meta text-muted">{secret.project_id == null ? "whole server" : "project"}{uses.length > 0 ? ` · ${uses.join(" · ")}` : ""} · changed {formatAge(secret.updated_at, now)}</p>
      </div>
      <IconButton label={`Remove ${secret.name}`} size="small" onClick={onRemove}><Trash2 size={15} aria-hidden /></IconButton>
    </li>
  );
}

function SecretForm({ projectId, onClose }: { projectId: string | undefined; onClose: () => void }) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [variable, setVariable] = useState("");
  return (
    <FormDialog
      title="Add or replace a secret"
      description="The server seals the value. No page, log or response shows it again."
      submit="Save"
      canSubmit={name.trim() !== "" && value !== ""}
      onClose={onClose}
      onSubmit={async () => {
        const body = { value, ...(projectId === undefined ? {} : { project_id: projectId }), ...(variable.trim() === "" ? {} : { expose: variable.trim() }) };
        await unwrap(api.PUT("/api/v1/secrets/{name}", { params: { path: { name: name.trim() } }, body }));
        await refreshSecrets();
        reportSuccess(`Saved ${name.trim()}`);
      }}
    >
      <Field label="Name" hint="Model keys are known by their usual names, such as ANTHROPIC_API_KEY.">
        {(control) => <TextInput {...control} autoFocus value={name} onChange={(event) => { setName(event.target.value); }} className="font-mono" />}
      </Field>
      <Field label="Value">{(control) => <TextArea {...control} rows={3} autoComplete="off" spellCheck={false} value={value} onChange={(event) => { setValue(event.target.value); }} className="font-mono [-webkit-text-security:disc]" />}</Field>
      <Field label="Variable in sandboxes" hint="Leave it empty for model keys: the gateway adds them, and sandboxes never see them.">
        {(control) => <TextInput {...control} placeholder="not exposed" value={variable} onChange={(event) => { setVariable(event.target.value); }} className="font-mono" />}
      </Field>
    </FormDialog>
  );
}
