// Runs plans of programs on sets of CPU cores, with no Python between two operations.
//
// The rule: a core runs the ready operation of least rank among those that use it; an operation on several cores starts
// when it is the choice of all of them. Ranks are distinct, so choices cannot wait for each other in a circle.
//
// A program is told node by node (`Program`), the cores once (`Machine`); `Machine::run` runs one on the other.

#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/custom_class.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using c10::IValue;
using Clock = std::chrono::steady_clock;
using Nodes = std::vector<int64_t>;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// ---------------------------------------------------------------------------------------------------------- programs

struct Argument {
  enum Kind { fixed, value, list } kind;
  IValue constant;  // of a fixed one
  Nodes from;       // the node that makes the value, or each item of the list (-1 = None)
};

// A group of operations that Inductor compiled ahead of time: tensors -> tensors. Several threads may call it at once.
using Group = torch::inductor::AOTIModelContainerRunnerCpu;

struct Operation {
  std::optional<c10::OperatorHandle> handle;  // none: an input, a constant, a compiled group, or an item of a result
  std::shared_ptr<Group> group;               // compiled, of the values that it reads
  int64_t item = -1;                          // which one, of the first argument
  std::vector<Argument> arguments;
  Nodes producers, consumers;
  bool kept = false;  // returned by a run
  bool computed() const { return handle.has_value() || group || item >= 0; }
};

class Program : public torch::CustomClassHolder {
 public:
  explicit Program(int64_t nodes) : operations(nodes) {}

  void call(int64_t node, std::string name, std::string overload) {
    operations.at(node).handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  }
  // The library is loaded once for all nodes that name it; `callers`: how many threads may be in it at once.
  void compiled(int64_t node, std::string library, int64_t callers) {
    auto& group = groups_[library];
    if (!group) group = std::make_shared<Group>(library, callers);
    operations.at(node).group = group;
  }
  void item(int64_t node, int64_t from, int64_t which) {
    value(node, from);
    operations.at(node).item = which;
  }
  void fixed(int64_t node, IValue constant) {
    auto& operation = operations.at(node);
    const auto& wanted = operation.handle->schema().arguments().at(operation.arguments.size()).type();
    operation.arguments.push_back({Argument::fixed, adapted(std::move(constant), wanted), {}});
  }
  void value(int64_t node, int64_t from) { operations.at(node).arguments.push_back({Argument::value, {}, {from}}); }
  void list(int64_t node, Nodes from) { operations.at(node).arguments.push_back({Argument::list, {}, std::move(from)}); }
  void constant(int64_t node, at::Tensor tensor) { constants.emplace_back(node, std::move(tensor)); }

  // Called once, after the last node: who reads whom, and which values a run returns.
  void finish(Nodes kept) {
    for (auto node : kept) operations.at(node).kept = true;
    for (size_t node = 0; node < operations.size(); ++node)
      for (const auto& argument : operations[node].arguments)
        for (auto from : argument.from) connect(from, node);
  }

  std::vector<Operation> operations;
  std::vector<std::pair<int64_t, at::Tensor>> constants;

 private:
  std::unordered_map<std::string, std::shared_ptr<Group>> groups_;

  void connect(int64_t from, int64_t node) {
    if (from < 0) return;
    auto& producers = operations[node].producers;
    if (std::find(producers.begin(), producers.end(), from) != producers.end()) return;
    producers.push_back(from);
    operations.at(from).consumers.push_back(node);
  }

  // A constant as the schema wants it, where Python's differs: [] has no type, 1 stands for 1.0, 0.5 for a tensor.
  static IValue adapted(IValue constant, c10::TypePtr wanted) {
    if (auto optional = wanted->cast<c10::OptionalType>()) {
      if (constant.isNone()) return constant;
      wanted = optional->getElementType();
    }
    switch (wanted->kind()) {
      case c10::TypeKind::FloatType:
        return constant.isInt() ? IValue(static_cast<double>(constant.toInt())) : constant;
      case c10::TypeKind::TensorType: {
        if (!constant.isScalar()) return constant;
        auto tensor = c10::scalar_to_tensor(constant.toScalar());
        tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
        return tensor;
      }
      case c10::TypeKind::ListType:
        if (!constant.isNone() && !(constant.isList() && constant.toListRef().empty())) return constant;
        switch (wanted->castRaw<c10::ListType>()->getElementType()->kind()) {
          case c10::TypeKind::FloatType: return c10::List<double>();
          case c10::TypeKind::BoolType: return c10::List<bool>();
          case c10::TypeKind::TensorType: return c10::List<at::Tensor>();
          default: return c10::List<int64_t>();
        }
      default: return constant;
    }
  }
};

// What a plan says: home, the device of each node; rank, the order of preference among ready ones, distinct.
class Schedule : public torch::CustomClassHolder {
 public:
  Schedule(c10::intrusive_ptr<Program> of, Nodes home_of, Nodes rank_of)
      : program(std::move(of)), home(std::move(home_of)), rank(std::move(rank_of)), by_rank(rank.size()),
        pending(rank.size()) {
    TORCH_CHECK(home.size() == program->operations.size() && rank.size() == home.size(), "a plan of another program");
    for (size_t node = 0; node < rank.size(); ++node) {
      by_rank[rank[node]] = node;
      const auto& operation = program->operations[node];
      if (!operation.computed()) continue;
      ++count;
      for (auto from : operation.producers) pending[node] += program->operations[from].computed();
      if (!pending[node]) first.push_back(node);
    }
  }
  const c10::intrusive_ptr<Program> program;
  const Nodes home, rank;
  Nodes by_rank, pending, first;  // pending: values each node waits for; first: nodes that wait for none
  int64_t count = 0;              // of operations
};

// ------------------------------------------------------------------------------------------------------------ memory

// Told of every allocation of a worker's thread: bytes that live now, and the most there were, in the run and in the
// operation that this thread is at.
struct Bytes : c10::MemoryReportingInfoBase {
  std::atomic<int64_t> live{0}, peak{0};
  static thread_local int64_t own, most;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    most = std::max(most, own += size);
    int64_t now = live.fetch_add(size, std::memory_order_relaxed) + size, seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  void reset() { live = peak = 0; }
};
thread_local int64_t Bytes::own = 0, Bytes::most = 0;

// ----------------------------------------------------------------------------------------------------------- machine

class SpinLock {
 public:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) pause();
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

using Ready = std::priority_queue<int64_t, Nodes, std::greater<>>;  // ranks, the least on top

// Cores, a bit for each, 64 to a word: as many words as the machine needs.
using Words = std::vector<uint64_t>;

struct Device {
  Words cores;
  size_t begin, end;  // the first word with a bit of this device, and the one behind the last
  int64_t threads;  // of one operation
  size_t worker;    // whose thread runs its operations
  Ready ready;
};

constexpr int32_t kNothing = -1, kClose = -2;

struct Worker {
  std::thread thread;
  std::vector<int64_t> pinned;           // system numbers of the cores of the thread itself
  std::vector<int64_t> widest;           // and of its helpers
  int64_t most_threads = 1;
  size_t word = 0;                       // of the core of the thread itself
  uint64_t bit = 0;                      // in that word
  alignas(64) std::atomic<int32_t> task{kNothing};  // a node
  std::atomic<bool> parked{false};
};

struct Run {
  explicit Run(c10::intrusive_ptr<Schedule> of)
      : schedule(std::move(of)), pending(schedule->pending), left(schedule->count), values(pending.size()),
        uses(pending.size()), begin(pending.size()), end(pending.size()), live(pending.size()),
        within(pending.size()) {
    for (size_t node = 0; node < uses.size(); ++node) {
      const auto& operation = schedule->program->operations[node];
      uses[node].store(operation.consumers.size() + operation.kept, std::memory_order_relaxed);
    }
  }
  const c10::intrusive_ptr<Schedule> schedule;
  Nodes pending;
  int64_t left, failed_node = -1;
  std::string reason;
  std::vector<IValue> values;
  std::vector<std::atomic<int64_t>> uses;
  std::vector<double> begin, end;  // microseconds since the start
  Nodes live;                      // bytes of intermediate values when the node had run
  Nodes within;                    // the most bytes that the node itself took while it ran
  Clock::time_point start;
};

class Machine : public torch::CustomClassHolder {
 public:
  // cores: their number. spin_us: how long an idle thread looks for work before it sleeps, while no operation uses its core.
  Machine(int64_t cores, int64_t spin_us)
      : running_((cores + 63) / 64), claimed_(running_.size()), spin_(std::chrono::microseconds(spin_us)),
        bytes_(std::make_shared<Bytes>()) {}
  ~Machine() override { close(); }

  int64_t worker(std::vector<int64_t> pinned, std::vector<int64_t> widest, int64_t most_threads, int64_t core) {
    auto worker = std::make_unique<Worker>();
    worker->pinned = std::move(pinned);
    worker->widest = std::move(widest);
    worker->most_threads = most_threads;
    worker->word = core / 64;
    worker->bit = uint64_t{1} << core % 64;
    workers_.push_back(std::move(worker));
    return workers_.size() - 1;
  }
  void device(Nodes cores, int64_t threads, int64_t worker) {
    Words words(running_.size());
    for (auto core : cores) words.at(core / 64) |= uint64_t{1} << core % 64;
    auto [least, most] = std::minmax_element(cores.begin(), cores.end());
    devices_.push_back({words, size_t(*least / 64), size_t(*most / 64 + 1), threads, static_cast<size_t>(worker), {}});
    order_.reserve(devices_.size());
  }
  void start() {
    for (auto& worker : workers_) worker->thread = std::thread([this, each = worker.get()] { work(*each); });
  }
  void close() {
    if (getpid() != process_)  // after a fork, in the child: the threads stayed in the parent, so none can be joined
      for (auto& worker : workers_) worker.release();
    else
      for (auto& worker : workers_) tell(*worker, kClose);
    for (auto& worker : workers_)
      if (worker && worker->thread.joinable()) worker->thread.join();
    workers_.clear();
  }

  // One run. inputs: values of the first nodes. memory_limit: bytes that intermediate values may take, 0 = any.
  void run(c10::intrusive_ptr<Schedule> schedule, std::vector<at::Tensor> inputs, int64_t memory_limit) {
    run_ = std::make_unique<Run>(schedule);
    for (size_t node = 0; node < inputs.size(); ++node) run_->values[node] = inputs[node];
    for (const auto& [node, tensor] : schedule->program->constants) run_->values[node] = tensor;
    for (auto& device : devices_) device.ready = {};
    for (auto node : schedule->first) devices_.at(schedule->home[node]).ready.push(schedule->rank[node]);
    memory_limit_ = memory_limit;
    bytes_->reset();
    finished_.store(run_->left == 0);
    run_->start = Clock::now();
    if (run_->left) {
      {
        std::lock_guard guard(lock_);
        assign();
      }
      finished_.wait(false);
    }
  }
  // Of the last run.
  int64_t failed_node() { return run_->failed_node; }
  std::string reason() { return run_->reason; }
  std::vector<at::Tensor> results(const Nodes& nodes) {
    std::vector<at::Tensor> tensors;
    for (auto node : nodes) tensors.push_back(run_->values.at(node).toTensor());
    return tensors;
  }
  std::vector<double> begins() { return run_->begin; }
  std::vector<double> ends() { return run_->end; }
  Nodes live() { return run_->live; }
  Nodes within() { return run_->within; }
  int64_t peak() { return bytes_->peak; }
  void forget() { run_.reset(); }

 private:
  // Which ready operations start? In the order of rank each claims its cores, whether it can start now or must wait.
  void assign() {
    for (size_t word = 0; word < claimed_.size(); ++word) claimed_[word] = running_[word].load(std::memory_order_relaxed);
    order_.clear();
    for (size_t i = 0; i < devices_.size(); ++i)
      if (!devices_[i].ready.empty() && !is_claimed_whole(devices_[i])) order_.push_back(i);
    std::sort(order_.begin(), order_.end(),
              [this](size_t a, size_t b) { return devices_[a].ready.top() < devices_[b].ready.top(); });
    for (auto i : order_) {
      auto& device = devices_[i];
      bool is_free = true;
      for (size_t word = device.begin; word < device.end; ++word) {
        is_free = is_free && !(device.cores[word] & claimed_[word]);
        claimed_[word] |= device.cores[word];
      }
      if (is_free) {
        int64_t node = run_->schedule->by_rank[device.ready.top()];
        device.ready.pop();
        for (size_t word = device.begin; word < device.end; ++word)
          running_[word].store(running_[word].load(std::memory_order_relaxed) | device.cores[word], std::memory_order_relaxed);
        tell(*workers_[device.worker], node);
      }
    }
  }

  // All cores of the device are claimed: its operations can neither start nor claim another core.
  bool is_claimed_whole(const Device& device) const {
    for (size_t word = device.begin; word < device.end; ++word)
      if (device.cores[word] & ~claimed_[word]) return false;
    return true;
  }

  static void tell(Worker& worker, int32_t task) {
    worker.task.store(task, std::memory_order_seq_cst);
    if (worker.parked.load(std::memory_order_seq_cst)) worker.task.notify_one();
  }

  // The next task. A thread whose core is used by an operation of another thread sleeps at once.
  int32_t next(Worker& worker) {
    auto since = Clock::now();
    for (int turn = 1;; ++turn) {
      int32_t task = worker.task.exchange(kNothing, std::memory_order_acquire);
      if (task != kNothing) return task;
      for (int i = 0; i < 16 && worker.task.load(std::memory_order_relaxed) == kNothing; ++i) pause();
      bool covered = running_[worker.word].load(std::memory_order_relaxed) & worker.bit;
      if (covered || (turn % 16 == 0 && Clock::now() - since > spin_)) {
        worker.parked.store(true, std::memory_order_seq_cst);
        worker.task.wait(kNothing, std::memory_order_seq_cst);
        worker.parked.store(false, std::memory_order_relaxed);
      }
    }
  }

  // Make the helper threads of the calling one, each on a core of its own. Left to the system they come to lie on the core
  // of the thread that wakes them, now and then for a whole run, which then takes twice as long.
  static void make_helpers(const Worker& worker) {
    static std::mutex one_at_a_time;
    std::lock_guard guard(one_at_a_time);
    pin(worker.widest);  // they inherit it
    at::get_num_threads();
    at::set_num_threads(worker.most_threads);
    auto before = thread_ids();
    // By an operation of PyTorch: this file is compiled without OpenMP, so its own parallel loops would run on one thread.
    at::empty({2 * worker.most_threads * at::internal::GRAIN_SIZE}, at::kFloat).fill_(1);
    size_t next = 1;
    for (auto thread : thread_ids())
      if (!before.count(thread) && next < std::min<size_t>(worker.widest.size(), worker.most_threads)) pin({worker.widest[next++]}, thread);
    pin(worker.pinned);
  }

  void work(Worker& worker) {
    make_helpers(worker);
    int64_t threads = worker.most_threads;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::AutoGradMode without_gradients(false);
    c10::DebugInfoGuard reports(c10::DebugInfoKind::PROFILER_STATE, bytes_);
    std::vector<IValue> stack;
    for (int32_t node; (node = next(worker)) != kClose;) {
      auto& device = devices_[run_->schedule->home[node]];
      if (device.threads != threads) at::set_num_threads(threads = device.threads);
      std::string failure;
      Bytes::own = Bytes::most = 0;
      run_->begin[node] = microseconds();
      try {
        compute(node, stack);
        if (memory_limit_ && bytes_->peak > memory_limit_)
          failure = "out of memory: " + std::to_string(bytes_->peak) + " bytes, limit " + std::to_string(memory_limit_);
      } catch (const c10::Error& error) {
        failure = error.what_without_backtrace();
      } catch (const std::exception& error) {
        failure = error.what();
      }
      if (!failure.empty()) stack.clear();  // what it was called with is freed before the next run is counted
      run_->end[node] = microseconds();
      run_->live[node] = bytes_->live;
      run_->within[node] = Bytes::most;
      if (settle(node, device, failure)) {
        stack.clear();
        finished_.store(true);
        finished_.notify_one();
      }
    }
  }

  // The node has run (or failed): what may start now? True if the run is over.
  bool settle(int64_t node, const Device& device, const std::string& failure) {
    std::lock_guard guard(lock_);
    for (size_t word = device.begin; word < device.end; ++word)
      running_[word].store(running_[word].load(std::memory_order_relaxed) & ~device.cores[word], std::memory_order_relaxed);
    --run_->left;
    if (!failure.empty() && run_->failed_node < 0) {
      run_->failed_node = node;
      run_->reason = failure;
    }
    if (run_->failed_node >= 0)
      return std::all_of(running_.begin(), running_.end(), [](const auto& word) { return !word.load(std::memory_order_relaxed); });
    const auto& schedule = *run_->schedule;
    for (auto consumer : schedule.program->operations[node].consumers)
      if (!--run_->pending[consumer]) devices_[schedule.home[consumer]].ready.push(schedule.rank[consumer]);
    if (run_->left) assign();
    return !run_->left;
  }

  void compute(int64_t node, std::vector<IValue>& stack) {
    const auto& operations = run_->schedule->program->operations;
    const auto& operation = operations[node];
    auto& values = run_->values;
    if (operation.item >= 0) {
      const auto& all = values[operation.arguments[0].from[0]];
      values[node] = all.isTuple() ? all.toTupleRef().elements().at(operation.item)
                                   : IValue(all.toTensorList().get(operation.item));
    } else if (operation.group) {
      stack.clear();
      std::vector<at::Tensor> inputs;
      inputs.reserve(operation.arguments.size());
      for (const auto& argument : operation.arguments) inputs.push_back(values[argument.from[0]].toTensor());
      for (auto& output : operation.group->run(inputs)) stack.emplace_back(std::move(output));
      values[node] = collected(stack);
    } else {
      stack.clear();
      for (size_t i = 0; i < operation.arguments.size(); ++i) {
        const auto& argument = operation.arguments[i];
        if (argument.kind == Argument::fixed)
          stack.push_back(argument.constant);
        else if (argument.kind == Argument::value)
          stack.push_back(values[argument.from[0]]);
        else
          stack.push_back(gathered(argument.from, operation.handle->schema().arguments()[i].type()));
      }
      operation.handle->callBoxed(&stack);
      values[node] = collected(stack);
    }
    for (auto from : operation.producers)
      if (operations[from].computed() && run_->uses[from].fetch_sub(1, std::memory_order_acq_rel) == 1)
        values[from] = IValue();
    if (!run_->uses[node].load(std::memory_order_relaxed)) values[node] = IValue();
  }

  // What is on the stack, which is empty afterwards: one value as it is, several as a tuple.
  static IValue collected(std::vector<IValue>& stack) {
    IValue value = stack.size() == 1 ? std::move(stack[0]) : IValue(c10::ivalue::Tuple::create(std::move(stack)));
    stack.clear();
    return value;
  }

  IValue gathered(const Nodes& from, c10::TypePtr type) {
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const auto& values = run_->values;
    if (type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      for (auto node : from) list.push_back(node < 0 ? std::optional<at::Tensor>() : values[node].toTensor());
      return list;
    }
    c10::List<at::Tensor> list;
    for (auto node : from) list.push_back(values[node].toTensor());
    return list;
  }

  double microseconds() const { return std::chrono::duration<double, std::micro>(Clock::now() - run_->start).count(); }

  // Of a thread by its number in the system, 0 = the calling one.
  static void pin(const std::vector<int64_t>& cores, int64_t thread = 0) {
#ifdef __linux__
    if (cores.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (auto core : cores) CPU_SET(core, &set);
    sched_setaffinity(thread, sizeof set, &set);  // not allowed here: it works unbound
#endif
  }

  // Numbers of the threads of this process; none where the system does not tell.
  static std::set<int64_t> thread_ids() {
    std::set<int64_t> found;
    std::error_code no_matter;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", no_matter))
      found.insert(std::stoll(entry.path().filename()));
    return found;
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Device> devices_;
  std::unique_ptr<Run> run_;
  SpinLock lock_;
  std::vector<std::atomic<uint64_t>> running_;  // cores in use
  Words claimed_;                               // and those that wait for others; of `assign`
  std::vector<size_t> order_;                   // devices with ready operations; of `assign`
  std::atomic<bool> finished_{false};
  const pid_t process_ = getpid();
  Clock::duration spin_;
  std::shared_ptr<Bytes> bytes_;
  int64_t memory_limit_ = 0;
};

TORCH_LIBRARY(gst, library) {
  library.class_<Program>("Program")
      .def(torch::init<int64_t>())
      .def("call", &Program::call)
      .def("compiled", &Program::compiled)
      .def("item", &Program::item)
      .def("fixed", &Program::fixed)
      .def("value", &Program::value)
      .def("list", &Program::list)
      .def("constant", &Program::constant)
      .def("finish", &Program::finish);
  library.class_<Schedule>("Schedule").def(torch::init<c10::intrusive_ptr<Program>, Nodes, Nodes>());
  library.class_<Machine>("Machine")
      .def(torch::init<int64_t, int64_t>())
      .def("worker", &Machine::worker)
      .def("device", &Machine::device)
      .def("start", &Machine::start)
      .def("close", &Machine::close)
      .def("run", &Machine::run)
      .def("failed_node", &Machine::failed_node)
      .def("reason", &Machine::reason)
      .def("results", [](const c10::intrusive_ptr<Machine>& machine, Nodes nodes) { return machine->results(nodes); })
      .def("begins", &Machine::begins)
      .def("ends", &Machine::ends)
      .def("live", &Machine::live)
      .def("within", &Machine::within)
      .def("peak", &Machine::peak)
      .def("forget", &Machine::forget);
}

}  // namespace
