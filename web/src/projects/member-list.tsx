import { useState, type FormEvent } from "react";
import { useQuery } from "@tanstack/react-query";
import { X } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import { Button, IconButton } from "@/components/button";
import { Select } from "@/components/field";
import { FailureNotice } from "@/components/notice";
import { useAction } from "@/components/use-action";
import { SafeText } from "@/text/safe-text-view";
import { RoleSelect, type Role } from "@/users/role-select";
import { useUsers } from "@/users/user-queries";

export function MemberList({ projectId }: { projectId: string }) {
  const key = ["members", projectId];
  const members = useQuery({ queryKey: key, queryFn: async () => (await unwrap(api.GET("/api/v1/projects/{id}/members", { params: { path: { id: projectId } } }))).items });
  const users = useUsers().data ?? [];
  const [user, setUser] = useState("");
  const [role, setRole] = useState<Role>("member");
  const changing = useAction("Members not changed");
  const set = (userId: string, next: Role) =>
    void changing.run(async () => {
      await unwrap(api.PUT("/api/v1/projects/{id}/members/{user}", { params: { path: { id: projectId, user: userId } }, body: { role: next } }));
      await queryClient.invalidateQueries({ queryKey: key });
      setUser("");
    });
  const remove = (userId: string) =>
    void changing.run(async () => {
      await unwrap(api.DELETE("/api/v1/projects/{id}/members/{user}", { params: { path: { id: projectId, user: userId } } }));
      await queryClient.invalidateQueries({ queryKey: key });
    });
  const others = users.filter((each) => members.data?.every((member) => member.user_id !== each.id));
  return (
    <div className="flex flex-col gap-3">
      {members.error !== null && <FailureNotice failure={members.error} onRetry={() => void members.refetch()} />}
      {members.data?.length === 0 && <p className="text-control text-muted">No members. Administrators see every project.</p>}
      <ul className="flex flex-col">
        {members.data?.map((member) => (
          <li key={member.user_id} className="flex items-center gap-3 border-b border-line py-1.5 last:border-b-0">
            <span className="min-w-0 flex-1 truncate text-control"><SafeText text={users.find((each) => each.id === member.user_id)?.name ?? member.user_id} /></span>
            <RoleSelect aria-label="Role" className="w-auto" role={member.role} onRole={(next) => { set(member.user_id, next); }} />
            <IconButton label="Remove from the project" size="small" onClick={() => { remove(member.user_id); }}><X size={15} aria-hidden /></IconButton>
          </li>
        ))}
      </ul>
      {others.length > 0 && (
        <form className="flex flex-wrap gap-2" onSubmit={(event: FormEvent) => { event.preventDefault(); if (user !== "") set(user, role); }}>
          <Select aria-label="User" className="w-auto" value={user} onChange={(event) => { setUser(event.target.value); }}>
            <option value="">Choose a user</option>
            {others.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
          </Select>
          <RoleSelect aria-label="Role of the new member" className="w-auto" role={role} onRole={setRole} />
          <Button type="submit" isBusy={changing.isBusy} disabled={user === ""}>Add</Button>
        </form>
      )}
    </div>
  );
}
