//! How to get a program that set-up needs and a sandbox lacks.

/// Commands that install a program on Debian and Ubuntu, system-wide: sandboxes see `/usr`.
const INSTALL_COMMANDS: &[(&str, &str)] = &[
    ("bash", "apt install bash"),
    ("bun", "npm install --global bun"),
    ("bundle", "apt install ruby-bundler"),
    ("cargo", "apt install cargo"),
    ("cc", "apt install build-essential"),
    ("composer", "apt install composer"),
    ("git", "apt install git"),
    ("go", "apt install golang-go"),
    ("gradle", "apt install gradle"),
    ("java", "apt install default-jdk-headless"),
    ("make", "apt install build-essential"),
    ("mvn", "apt install maven"),
    ("node", "apt install nodejs"),
    ("npm", "apt install npm"),
    ("php", "apt install php-cli"),
    ("pipenv", "apt install pipenv"),
    ("pnpm", "npm install --global pnpm"),
    ("poetry", "apt install python3-poetry"),
    ("python3", "apt install python3 python3-venv"),
    ("ruby", "apt install ruby"),
    ("rustc", "apt install rustc"),
    ("uv", "pipx install --global uv"),
    ("yarn", "npm install --global yarn"),
];

/// A sentence on how to get a missing program.
pub fn remedy_for_tool(program: &str) -> String {
    const IMAGE: &str = "give the project an image that has it (`atoll image import`)";
    match INSTALL_COMMANDS.iter().find(|(name, _)| *name == program) {
        Some((_, command)) => format!("install it (such as `{command}`), or {IMAGE}"),
        None => format!("install it, or {IMAGE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_the_package_and_an_image() {
        assert_eq!(
            remedy_for_tool("mvn"),
            "install it (such as `apt install maven`), or give the project an image that has it (`atoll image import`)"
        );
        assert!(remedy_for_tool("zig").starts_with("install it, or "));
        assert!(INSTALL_COMMANDS.is_sorted());
    }
}
