export function GitPanel(_: object) { return null; }
