import type { components } from "./generated/schema";

/** The types of the HTTP API, generated from the server's OpenAPI document. */
export type Schemas = components["schemas"];
export type Sandbox = Schemas["Sandbox"];
export type SandboxState = Schemas["SandboxState"];
export type Activity = Schemas["Activity"];
export type Session = Schemas["Session"];
export type Message = Schemas["Message"];
export type MessageState = Schemas["MessageState"];
export type Delivery = Schemas["Delivery"];
export type Approval = Schemas["Approval"];
export type ApprovalDecision = Schemas["ApprovalDecision"];
export type Intervention = Schemas["Intervention"];
export type Agent = Schemas["Agent"];
export type Abilities = Schemas["Abilities"];
export type Provider = Schemas["Provider"];
export type Project = Schemas["Project"];
export type Diff = Schemas["Diff"];
export type DiffFile = Schemas["DiffFile"];
export type Exec = Schemas["Exec"];
export type SandboxFile = Schemas["SandboxFile"];
export type ResourceSample = Schemas["ResourceSample"];
export type ResourceSeries = Schemas["ResourceSeries"];
export type Limit = Schemas["Limit"];
export type Secret = Schemas["Secret"];
export type Token = Schemas["Token"];
export type User = Schemas["User"];
export type SignIn = Schemas["SignIn"];
export type OpenPort = Schemas["PortList"]["items"][number];
export type Preview = Schemas["Preview"];

/** An event of a type from the catalogue. */
export type KnownEvent = Schemas["TypedEvent"];
export type KnownEventType = KnownEvent["type"];
/** A stored event. Its type may be unknown to this page, and its data may have another shape than the catalogue says. */
export type StoredEvent = Schemas["Event"];
export type EventData<T extends KnownEventType> = Extract<KnownEvent, { type: T }>["data"];
