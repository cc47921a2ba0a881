//! Which part of an epoch a process of a distributed run takes, without talking to the others.

use std::env;
use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// What happens where the samples of an epoch don't divide by the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardMode {
    /// Every rank gets `ceil(n / world)` samples: after the last position the epoch starts over,
    /// and what is handed out again is marked [`Pick::padding`](crate::Pick::padding). As
    /// `torch.utils.data.DistributedSampler` does by default.
    Pad,
    /// Every rank gets `floor(n / world)` samples; up to `world - 1` are left out, others each
    /// epoch where the order is shuffled. As `DistributedSampler(drop_last=True)` does.
    Drop,
    /// Every sample is given to exactly one rank, so ranks may differ by one sample. Right for
    /// metrics; training loops that synchronise at every step want one of the others.
    Exact,
}

/// The part of one rank: positions `rank`, `rank + world`, `rank + 2 world`, ... of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct Shard {
    rank: u32,
    world: u32,
    local_rank: Option<u32>,
    mode: ShardMode,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Shard")]
struct Unchecked {
    rank: u32,
    world: u32,
    #[serde(default)]
    local_rank: Option<u32>,
    mode: ShardMode,
}

impl TryFrom<Unchecked> for Shard {
    type Error = ShardError;

    fn try_from(from: Unchecked) -> Result<Self, ShardError> {
        let shard = Self::new(from.rank, from.world, from.mode)?;
        Ok(Self { local_rank: from.local_rank, ..shard })
    }
}

impl From<Shard> for Unchecked {
    fn from(Shard { rank, world, local_rank, mode }: Shard) -> Self {
        Self { rank, world, local_rank, mode }
    }
}

/// The names under which a launcher tells a process its place.
struct Launcher {
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
}

const TORCHRUN: Launcher = Launcher { rank: "RANK", world: "WORLD_SIZE", local_rank: "LOCAL_RANK" };
const SLURM: Launcher =
    Launcher { rank: "SLURM_PROCID", world: "SLURM_NTASKS", local_rank: "SLURM_LOCALID" };

impl Shard {
    /// The part of `rank` of `world` ranks; ranks count from 0.
    ///
    /// # Errors
    /// Where `rank` is not below `world`.
    pub fn new(rank: u32, world: u32, mode: ShardMode) -> Result<Self, ShardError> {
        if rank >= world {
            return Err(ShardError::Rank { rank, world });
        }
        Ok(Self { rank, world, local_rank: None, mode })
    }

    /// The part that the launcher of this process gave it: `RANK` and `WORLD_SIZE` as torchrun and
    /// its like set them, else `SLURM_PROCID` and `SLURM_NTASKS` of a Slurm step.
    ///
    /// Where `RANK` or `WORLD_SIZE` is there, Slurm's variables are not looked at: a torchrun that
    /// `srun` started passes on `SLURM_PROCID`, which then is the number of the launcher. Slurm
    /// sets its variables in a batch script too, outside `srun`, where every process is task 0.
    /// `LOCAL_RANK` or `SLURM_LOCALID` is optional.
    ///
    /// # Errors
    /// Names the variable that is missing, not a number or out of range.
    pub fn from_env(mode: ShardMode) -> Result<Self, ShardError> {
        Self::from_lookup(mode, env::var_os)
    }

    fn from_lookup(
        mode: ShardMode,
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, ShardError> {
        let is_set = |name| lookup(name).is_some();
        let launcher = if is_set(TORCHRUN.rank) || is_set(TORCHRUN.world) {
            TORCHRUN
        } else if is_set(SLURM.rank) {
            SLURM
        } else {
            return Err(ShardError::NotDistributed);
        };
        let number = |variable| {
            let Some(value) = lookup(variable) else { return Ok(None) };
            match value.to_str().and_then(|text| text.trim().parse().ok()) {
                Some(number) => Ok(Some(number)),
                None => Err(ShardError::NotANumber { variable, value }),
            }
        };
        let rank = number(launcher.rank)?
            .ok_or(ShardError::Missing { variable: launcher.rank, beside: launcher.world })?;
        let world = number(launcher.world)?
            .ok_or(ShardError::Missing { variable: launcher.world, beside: launcher.rank })?;
        if rank >= world {
            let (rank_variable, world_variable) = (launcher.rank, launcher.world);
            return Err(ShardError::Environment { rank_variable, rank, world_variable, world });
        }
        Ok(Self { rank, world, local_rank: number(launcher.local_rank)?, mode })
    }

    /// This process's number, below [`world`](Self::world).
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes that share each epoch, at least 1.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// This process's number on its machine, where the environment told it: the usual choice of
    /// a GPU. It has no part in the order.
    pub fn local_rank(&self) -> Option<u32> {
        self.local_rank
    }

    /// What happens with the remainder.
    pub fn mode(&self) -> ShardMode {
        self.mode
    }

    /// This rank's share of an epoch of `samples`.
    pub(super) fn len(&self, samples: u64) -> u64 {
        let (rank, world) = (u64::from(self.rank), u64::from(self.world));
        match self.mode {
            ShardMode::Pad => samples.div_ceil(world),
            ShardMode::Drop => samples / world,
            ShardMode::Exact => samples / world + u64::from(rank < samples % world),
        }
    }
}

/// Why a [`Shard`] could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// There is no such rank.
    #[error("rank {rank} of {world} ranks: ranks count from 0 and lie below the number of ranks")]
    Rank {
        /// The rank asked for.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// The environment holds no launcher's variables.
    #[error(
        "neither RANK nor SLURM_PROCID is set: start the processes by torchrun or srun, \
         set RANK and WORLD_SIZE, or make the shard by Shard::new"
    )]
    NotDistributed,
    /// Half of a launcher's variables is there.
    #[error("{variable} is not set, although {beside} is")]
    Missing {
        /// The missing variable.
        variable: &'static str,
        /// The one that is there.
        beside: &'static str,
    },
    /// A variable holds something else than a number.
    #[error("{variable}={value:?} is not a whole number of 32 bits")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: OsString,
    },
    /// The variables contradict each other.
    #[error("{rank_variable}={rank} is not below {world_variable}={world}")]
    Environment {
        /// The variable that holds the rank.
        rank_variable: &'static str,
        /// The rank.
        rank: u32,
        /// The variable that holds the number of ranks.
        world_variable: &'static str,
        /// The number of ranks.
        world: u32,
    },
}

#[cfg(test)]
mod tests;
