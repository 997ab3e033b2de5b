//! The threads on which connections run.
//!
//! One multi-thread runtime, so that a task may be anywhere and an idle worker takes over from a busy one; why, and what
//! was measured, stands in `docs/decisions/0001-runtime-shape.md`. Nobody else knows the shape: connections are
//! started by [`Tasks::spawn`] and ask for nothing but to be `Send`.
//!
//! The composition root and the operator's side run on threads of their own, so that they answer even when every worker
//! is busy.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The worker threads. Dropped without [`shutdown`](Self::shutdown), they end by themselves, and nothing waits for them.
#[derive(Debug)]
pub struct Workers {
    /// There until the end.
    runtime: Option<Runtime>,
    tasks: Tasks,
    count: usize,
    alive: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts `count` threads, `worker-0` and so on; `None` is one for each core that this process may use.
    ///
    /// # Errors
    ///
    /// The system has no thread or descriptor left; nothing is left running then.
    pub fn start(count: Option<usize>) -> io::Result<Self> {
        let count = count.unwrap_or_else(cores).max(1);
        let alive = Arc::new(AtomicUsize::new(0));
        let (began, ended) = (alive.clone(), alive.clone());
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name_fn(names(count))
            .on_thread_start(move || _ = began.fetch_add(1, Ordering::Relaxed))
            .on_thread_stop(move || _ = ended.fetch_sub(1, Ordering::Relaxed))
            .enable_all()
            .build()?;
        let tasks = Tasks {
            handle: runtime.handle().clone(),
            tracker: TaskTracker::new(),
            panics: Arc::default(),
        };
        Ok(Self {
            runtime: Some(runtime),
            tasks,
            count,
            alive,
        })
    }

    /// How many threads share the work.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where to start tasks on the workers.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Waits at most `patience` for the tasks to end, cuts those that have not, and joins the threads.
    ///
    /// The caller has told the tasks to end before, each in its own way. It must not run on a worker itself. Not
    /// cancel-safe: dropped, it leaves the threads to end by themselves.
    pub async fn shutdown(mut self, patience: Duration) -> Remains {
        self.tasks.tracker.close();
        let in_time = timeout(patience, self.tasks.tracker.wait()).await;
        let cut = if in_time.is_ok() { 0 } else { self.tasks.tracker.len() };
        if let Some(runtime) = self.runtime.take() {
            let joined = spawn_blocking(move || runtime.shutdown_timeout(JOIN)).await;
            debug_assert!(joined.is_ok(), "joining threads does not panic");
        }
        Remains {
            cut,
            stuck: self.alive.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Workers {
    /// A runtime that is dropped within another one panics, unless it is told to end in the background.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a shutdown could not bring to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Tasks that were cut in the middle.
    pub cut: usize,
    /// Threads that are caught in a call that blocks; they end with the process.
    pub stuck: usize,
}

/// Starts tasks on the workers, from any thread.
#[derive(Clone, Debug)]
pub struct Tasks {
    handle: Handle,
    tracker: TaskTracker,
    panics: Arc<AtomicU64>,
}

impl Tasks {
    /// Starts a task, which a shutdown then waits for.
    ///
    /// A panic ends that task alone: it is logged and counted, and everything that the task owned is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = surviving(Box::pin(task), self.panics.clone());
        self.tracker.spawn_on(task, &self.handle);
    }

    /// Makes this thread one of the workers' for what begins tasks by itself, until the guard is dropped.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// The runtime of the workers.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The tracker that a shutdown waits for, for tasks that start tasks of their own.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Tasks that have not ended.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Tasks that panicked; each is a fault of this program.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

/// Runs `task` to its end or its panic. By value it would have its place twice: where it comes in and where it stays.
async fn surviving(mut task: Pin<Box<impl Future<Output = ()>>>, panics: Arc<AtomicU64>) {
    // Nothing looks at the task again after a panic, so nothing can see it half-changed.
    let outcome = poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(payload) => Poll::Ready(Err(payload)),
        },
    );
    if let Err(payload) = outcome.await {
        panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            panic = words_of(&*payload),
            "a task panicked; its connection is closed, the others go on"
        );
    }
}

fn words_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&'static str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no words")
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The runtime names its workers first, then the threads for blocking calls as they come.
fn names(workers: usize) -> impl Fn() -> String + Send + Sync + 'static {
    let started = AtomicUsize::new(0);
    move || match started.fetch_add(1, Ordering::Relaxed) {
        worker if worker < workers => format!("worker-{worker}"),
        other => format!("blocking-{}", other - workers),
    }
}

/// For threads to end, once no task keeps them.
const JOIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn answer_of<T: Send + 'static>(workers: &Workers, task: impl Future<Output = T> + Send + 'static) -> T {
        let (tell, told) = oneshot::channel();
        workers.tasks().spawn(async move { drop(tell.send(task.await)) });
        told.await.expect("the task ends")
    }

    fn thread_name() -> String {
        thread::current().name().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn tasks_run_on_as_many_named_threads_as_were_asked_for() {
        let workers = Workers::start(Some(2)).unwrap();
        let both = Arc::new(Barrier::new(2)); // passed only by two threads at one time
        let (first, second) = (both.clone(), both);
        let meet = |barrier: Arc<Barrier>| async move {
            barrier.wait();
            thread_name()
        };
        let (one, other) = tokio::join!(answer_of(&workers, meet(first)), answer_of(&workers, meet(second)));
        let mut names = [one, other];
        names.sort();
        assert_eq!(names, ["worker-0", "worker-1"]);
        assert_eq!(workers.count(), 2);
    }

    #[tokio::test]
    async fn blocking_calls_have_threads_of_another_name() {
        let workers = Workers::start(Some(1)).unwrap();
        let name = answer_of(&workers, async { spawn_blocking(thread_name).await.unwrap() }).await;
        assert_eq!(name, "blocking-0");
    }

    #[tokio::test]
    async fn a_panic_ends_its_task_and_nothing_else() {
        let workers = Workers::start(Some(1)).unwrap();
        let (kept, gone) = oneshot::channel::<()>();
        workers.tasks().spawn(async move {
            let _kept = kept;
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert!(gone.await.is_err(), "what the task owned is dropped");
        assert_eq!(answer_of(&workers, async { 7 }).await, 7);
        assert_eq!(workers.tasks().panics(), 1);
        assert_eq!(workers.shutdown(LONG).await, Remains { cut: 0, stuck: 0 });
    }

    #[test]
    fn the_words_of_a_panic_are_found() {
        let words = |panics: fn()| words_of(&*catch_unwind(panics).unwrap_err()).to_owned();
        assert_eq!(words(|| panic!("fixed")), "fixed");
        assert_eq!(words(|| panic!("made of {}", 2)), "made of 2");
        assert_eq!(words(|| std::panic::panic_any(2)), "no words");
    }

    #[tokio::test]
    async fn a_shutdown_waits_for_tasks_that_end() {
        let workers = Workers::start(Some(2)).unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let (tell, mut told) = oneshot::channel();
        workers.tasks().spawn(async move {
            let _ = ended.await;
            let _ = tell.send(());
        });
        assert_eq!(workers.tasks().len(), 1);
        let (remains, _) = tokio::join!(workers.shutdown(LONG), async { end.send(()) });
        assert_eq!(remains, Remains { cut: 0, stuck: 0 });
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_cuts_tasks_that_do_not_end_in_time() {
        let workers = Workers::start(Some(2)).unwrap();
        let (kept, gone) = oneshot::channel::<()>();
        workers.tasks().spawn(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        });
        assert_eq!(workers.shutdown(LONG).await, Remains { cut: 1, stuck: 0 });
        assert!(gone.await.is_err(), "what the task owned is dropped");
    }

    #[tokio::test]
    async fn workers_may_be_dropped_within_a_runtime() {
        let workers = Workers::start(None).unwrap();
        assert!(workers.count() >= 1);
        drop(workers);
    }
}
