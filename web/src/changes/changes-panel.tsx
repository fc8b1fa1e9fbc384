export function ChangesPanel(_: object) { return null; }
