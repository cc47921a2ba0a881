use std::collections::HashMap;

use super::*;

fn from(variables: &[(&'static str, &str)]) -> Result<Shard, ShardError> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    Shard::from_lookup(ShardMode::Exact, |name| variables.get(name).map(OsString::from))
}

#[test]
fn torchruns_variables_are_read() {
    let shard = from(&[("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")]).unwrap();
    assert_eq!((shard.rank(), shard.world(), shard.local_rank()), (3, 8, Some(1)));
    assert_eq!(from(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().local_rank(), None);
}

#[test]
fn slurms_variables_are_read() {
    let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];
    let shard = from(&slurm).unwrap();
    assert_eq!((shard.rank(), shard.world(), shard.local_rank()), (3, 8, Some(1)));
}

#[test]
fn torchrun_comes_before_slurm() {
    let mut both = vec![("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "0")];
    both.extend([("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")]);
    let shard = from(&both).unwrap();
    assert_eq!((shard.rank(), shard.world(), shard.local_rank()), (5, 8, Some(1)));
    // Half of the first is a mistake to tell, not a reason to take the second.
    both.retain(|(name, _)| *name != "WORLD_SIZE");
    assert_eq!(from(&both), Err(ShardError::Missing { variable: "WORLD_SIZE", beside: "RANK" }));
}

#[test]
fn errors_name_the_variable() {
    let text = |variables: &[(&'static str, &str)]| from(variables).unwrap_err().to_string();
    assert!(text(&[]).starts_with("neither RANK nor SLURM_PROCID is set"));
    assert_eq!(text(&[("WORLD_SIZE", "2")]), "RANK is not set, although WORLD_SIZE is");
    assert_eq!(text(&[("SLURM_PROCID", "2")]), "SLURM_NTASKS is not set, although SLURM_PROCID is");
    for bad in ["", "-1", "one", "4294967296", "1.0"] {
        assert_eq!(
            text(&[("RANK", bad), ("WORLD_SIZE", "2")]),
            format!("RANK={bad:?} is not a whole number of 32 bits")
        );
    }
    assert!(
        text(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "x")]).contains("LOCAL_RANK")
    );
    assert_eq!(text(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "RANK=2 is not below WORLD_SIZE=2");
}

#[test]
fn ranks_lie_below_the_world() {
    assert_eq!(Shard::new(2, 2, ShardMode::Pad), Err(ShardError::Rank { rank: 2, world: 2 }));
    assert!(Shard::new(0, 0, ShardMode::Pad).is_err());
    assert!(Shard::new(1, 2, ShardMode::Pad).is_ok());
}

#[test]
fn stored_shards_are_checked_when_read() {
    let shard = from(&[("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")]).unwrap();
    let text = serde_json::to_string(&shard).unwrap();
    assert_eq!(text, r#"{"rank":3,"world":8,"local_rank":1,"mode":"exact"}"#);
    assert_eq!(serde_json::from_str::<Shard>(&text).unwrap(), shard);
    let contradiction = text.replace('8', "3");
    assert!(serde_json::from_str::<Shard>(&contradiction).is_err());
}
