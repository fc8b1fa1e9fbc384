import { useState } from "react";
import { Plus, Trash2 } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { User } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Field, TextInput } from "@/components/field";
import { FormDialog } from "@/components/form-dialog";
import { FailureNotice } from "@/components/notice";
import { useAction } from "@/components/use-action";
import { formatCost } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { RoleSelect, type Role } from "./role-select";
import { USERS_KEY, useUsers } from "./user-queries";

export function UserList() {
  const users = useUsers();
  const [isAdding, setAdding] = useState(false);
  const [removed, setRemoved] = useState<User | null>(null);
  const changing = useAction("Role not changed");
  const setRole = (user: User, role: Role) =>
    void changing.run(async () => {
      await unwrap(api.PATCH("/api/v1/users/{id}", { params: { path: { id: user.id } }, body: { role } }));
      await queryClient.invalidateQueries({ queryKey: USERS_KEY });
    });
  return (
    <div className="flex flex-col gap-3">
      {users.error !== null && <FailureNotice failure={users.error} onRetry={() => void users.refetch()} />}
      <ul className="flex flex-col">
        {users.data?.map((user) => (
          <li key={user.id} className="flex items-center gap-3 border-b border-line py-1.5 last:border-b-0">
            <span className="min-w-0 flex-1 truncate text-control"><SafeText text={user.name} /></span>
            {user.usage?.cost != null && <span className="text-meta text-muted">{formatCost(user.usage.cost)}</span>}
            <RoleSelect aria-label={`Role of ${user.name}`} className="w-auto" role={user.role} onRole={(role) => { setRole(user, role); }} />
            <IconButton label={`Remove ${user.name}`} size="small" onClick={() => { setRemoved(user); }}><Trash2 size={15} aria-hidden /></IconButton>
          </li>
        ))}
      </ul>
      <div><Button icon={<Plus size={15} aria-hidden />} onClick={() => { setAdding(true); }}>New user</Button></div>
      {isAdding && <UserForm onClose={() => { setAdding(false); }} />}
      {removed !== null && (
        <FormDialog
          title={`Remove ${removed.name}`}
          description="All tokens of the user are revoked."
          submit="Remove"
          isDanger
          onClose={() => { setRemoved(null); }}
          onSubmit={async () => {
            await unwrap(api.DELETE("/api/v1/users/{id}", { params: { path: { id: removed.id } } }));
            await queryClient.invalidateQueries({ queryKey: USERS_KEY });
          }}
        />
      )}
    </div>
  );
}

function UserForm({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("member");
  return (
    <FormDialog
      title="New user"
      description="Then create a token for the user with `atoll token new --user`."
      submit="Create"
      canSubmit={name.trim() !== ""}
      onClose={onClose}
      onSubmit={async () => {
        await unwrap(api.POST("/api/v1/users", { body: { name: name.trim(), role } }));
        await queryClient.invalidateQueries({ queryKey: USERS_KEY });
      }}
    >
      <Field label="Name">{(control) => <TextInput {...control} autoFocus value={name} onChange={(event) => { setName(event.target.value); }} />}</Field>
      <Field label="Role">{(control) => <RoleSelect {...control} role={role} onRole={setRole} />}</Field>
    </FormDialog>
  );
}
