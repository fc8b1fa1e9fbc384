import type { ComponentProps } from "react";
import type { Schemas } from "@/api/types";
import { Select } from "@/components/field";

export type Role = Schemas["Role"];
const ROLES: readonly Role[] = ["viewer", "member", "admin"];

export function RoleSelect({ role, onRole, ...rest }: { role: Role; onRole: (role: Role) => void } & Omit<ComponentProps<typeof Select>, "value" | "onChange" | "children">) {
  return (
    <Select {...rest} value={role} onChange={(event) => { onRole(ROLES.find((each) => each === event.target.value) ?? role); }}>
      {ROLES.map((each) => <option key={each} value={each}>{each}</option>)}
    </Select>
  );
}
