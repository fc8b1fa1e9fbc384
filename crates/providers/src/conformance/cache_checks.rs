//! Checks of set-up layers.

use super::{CheckContext, CheckOutcome, describe_error, ensure};
use atoll_core::provider::capabilities::{CacheAbility, FileAbility};
use atoll_core::provider::{CacheUse, CreateSpec, Error, PACKAGE_CACHE_DIR, ProviderId};

const PATH: &str = "/workspace/set-up";

pub(super) async fn cache_contents(context: &CheckContext<'_>) -> CheckOutcome {
    let abilities = context.provider.capabilities();
    if abilities.caches == CacheAbility::None {
        let refused = context.provider.caches().await;
        ensure!(matches!(refused, Err(Error::Unsupported { .. })), "a provider without caches lists {refused:?}");
        return Ok(());
    }
    if abilities.files == FileAbility::None {
        return Ok(());
    }
    let origin = context.create_default_sandbox().await?;
    let download = format!("{PACKAGE_CACHE_DIR}/package");
    let made = context.run_command(&origin, &format!("mkdir -p {PACKAGE_CACHE_DIR}; echo x >~/other")).await?;
    ensure!(made.stderr.is_empty(), "{made:?}");
    context.upload_file(&origin, PATH, b"set up").await?;
    context.upload_file(&origin, &download, b"downloaded").await?;
    let name = format!("conformance-{}", context.new_spec().identity.sandbox);
    let sealed = context.provider.seal_cache(&origin, &name).await.map_err(describe_error("seal"))?;
    ensure!(sealed.name == name, "the layer's name is {:?}", sealed.name);
    context.upload_file(&origin, PATH, b"later").await?;
    let again = context.provider.seal_cache(&origin, &name).await.map_err(describe_error("seal again"))?;
    ensure!(again.created_at == sealed.created_at, "a second seal replaced the layer: {again:?}");

    let one = start_from(context, CacheUse::SetUp(name.clone())).await?;
    context.expect_content(&one, PATH, "set up").await?;
    context.upload_file(&one, PATH, b"poisoned").await?;
    context.upload_file(&one, &download, b"poisoned").await?;
    let two = start_from(context, CacheUse::SetUp(name.clone())).await?;
    context.expect_content(&two, PATH, "set up").await?;
    context.expect_content(&two, &download, "downloaded").await?;
    let downloads = start_from(context, CacheUse::Downloads(name.clone())).await?;
    context.expect_content(&downloads, &download, "downloaded").await?;
    let left = context.run_command(&downloads, "ls -A /workspace ~").await?;
    ensure!(left.stdout == "/home/agent:\n.cache\n\n/workspace:\n", "more than downloads is left: {left:?}");

    let listed = context.provider.caches().await.map_err(describe_error("list"))?;
    let listed = listed.into_iter().find(|cache| cache.name == name).ok_or("the layer is not listed")?;
    ensure!(listed.used_at >= listed.created_at, "the last use is not recorded: {listed:?}");
    let snapshots = context.provider.snapshots().await;
    ensure!(!snapshots.is_ok_and(|all| all.iter().any(|one| one.name == name)), "the layer is listed as a snapshot");
    context.provider.forget_cache(&name).await.map_err(describe_error("forget"))?;
    context.expect_content(&two, PATH, "set up").await?;
    let gone = context.provider.forget_cache(&name).await;
    ensure!(gone == Err(Error::Gone), "forgetting an unknown layer gave {gone:?}");
    let spec = CreateSpec { cache: Some(CacheUse::SetUp(name.clone())), ..context.new_spec() };
    let gone = context.provider.create(&spec, "from-nothing").await;
    ensure!(gone == Err(Error::CacheGone { name }), "a forgotten layer gave {gone:?}");
    Ok(())
}

async fn start_from(context: &CheckContext<'_>, cache: CacheUse) -> Result<ProviderId, String> {
    let spec = CreateSpec { cache: Some(cache.clone()), ..context.new_spec() };
    let found = context.create_sandbox(&spec, &spec.identity.sandbox.to_string()).await?;
    ensure!(found.cache.as_ref() == Some(&cache), "the sandbox reports {:?} instead of {cache:?}", found.cache);
    Ok(found.id)
}
