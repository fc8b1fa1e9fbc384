export function NewPage() { return null; }
