export function DetailsPanel(_: object) { return null; }
