export function EventsPanel(_: object) { return null; }
