import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Plus, Trash2 } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { queryClient, useProjects } from "@/api/queries";
import type { Schemas, Token } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Field, Select, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { FailureNotice, Notice } from "@/components/notice";
import { CopyButton } from "@/text/code-block";
import { formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { RoleSelect, type Role } from "@/users/role-select";

const TOKENS_KEY = ["tokens"] as const;

export function TokenList() {
  const tokens = useQuery({ queryKey: TOKENS_KEY, queryFn: async () => (await unwrap(api.GET("/api/v1/tokens", { params: { query: { limit: 200 } } }))).items });
  const [isAdding, setAdding] = useState(false);
  const [created, setCreated] = useState<Token | null>(null);
  const [revoked, setRevoked] = useState<Token | null>(null);
  return (
    <div className="flex flex-col gap-3">
      {tokens.error !== null && <FailureNotice failure={tokens.error} onRetry={() => void tokens.refetch()} />}
      {created?.token != null && (
        <Notice tone="attention">
          <p>Copy the token now. It is not shown again.</p>
          <p className="mt-1 flex items-center gap-2"><code className="min-w-0 font-mono text-code text-text [overflow-wrap:anywhere]">{created.token}</code><CopyButton text={created.token} label="Copy the token" /></p>
        </Notice>
      )}
      <ul className="flex flex-col">
        {tokens.data?.map((token) => (
          <li key={token.id} className="flex items-center gap-3 border-b border-line py-2 last:border-b-0">
            <div className="min-w-0 flex-1">
              <p className="truncate text-control"><SafeText text={token.name} /></p>
              <p className="text-meta text-muted">{token.kind} · {token.role} · created {formatDateTime(token.created_at)}{token.expires_at == null ? "" : ` · expires ${formatDateTime(token.expires_at)}`}</p>
            </div>
            <IconButton label={`Revoke ${token.name}`} size="small" onClick={() => { setRevoked(token); }}><Trash2 size={15} aria-hidden /></IconButton>
          </li>
        ))}
      </ul>
      <div><Button icon={<Plus size={15} aria-hidden />} onClick={() => { setAdding(true); }}>New token</Button></div>
      {isAdding && <TokenForm onClose={() => { setAdding(false); }} onCreated={setCreated} />}
      {revoked !== null && (
        <FormDialog
          title={`Revoke ${revoked.name}`}
          description="Programs that use it lose access at once."
          submit="Revoke"
          isDanger
          onClose={() => { setRevoked(null); }}
          onSubmit={async () => {
            await unwrap(api.DELETE("/api/v1/tokens/{id}", { params: { path: { id: revoked.id } } }));
            await queryClient.invalidateQueries({ queryKey: TOKENS_KEY });
          }}
        />
      )}
    </div>
  );
}

function TokenForm({ onClose, onCreated }: { onClose: () => void; onCreated: (token: Token) => void }) {
  const projects = useProjects().data ?? [];
  const [name, setName] = useState("");
  const [kind, setKind] = useState<Schemas["TokenKind"]>("user");
  const [role, setRole] = useState<Role>("member");
  const [projectId, setProjectId] = useState("");
  return (
    <FormDialog
      title="New token"
      submit="Create"
      canSubmit={name.trim() !== ""}
      onClose={onClose}
      onSubmit={async () => {
        const body = { name: name.trim(), kind, ...(kind === "service" ? { role, ...(projectId === "" ? {} : { project_id: projectId }) } : {}) };
        onCreated(await unwrap(api.POST("/api/v1/tokens", { body })));
        await queryClient.invalidateQueries({ queryKey: TOKENS_KEY });
      }}
    >
      <Field label="Name" hint="What uses it, such as a script or a machine.">{(control) => <TextInput {...control} autoFocus value={name} onChange={(event) => { setName(event.target.value); }} />}</Field>
      <Field label="Kind">
        {(control) => (
          <Select {...control} value={kind} onChange={(event) => { setKind(event.target.value as Schemas["TokenKind"]); }}>
            <option value="user">User: has your rights</option>
            <option value="service">Service: has a role of its own</option>
          </Select>
        )}
      </Field>
      {kind === "service" && (
        <>
          <Field label="Role">{(control) => <RoleSelect {...control} role={role} onRole={setRole} />}</Field>
          <Field label="Project">
            {(control) => (
              <Select {...control} value={projectId} onChange={(event) => { setProjectId(event.target.value); }}>
                <option value="">All projects</option>
                {projects.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
              </Select>
            )}
          </Field>
        </>
      )}
    </FormDialog>
  );
}
