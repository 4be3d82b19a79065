// Runs a recorded stretch of operators without Python: arguments are converted once, when the program is made.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace replay_op {

constexpr size_t kMostPointers = 64;

struct Call {
  std::optional<c10::OperatorHandle> op;  // neither this nor a kernel: the arguments, all tensors, become a list
  std::vector<int64_t> arguments;         // register, or −1 − constant
  std::vector<int64_t> results;    // register, −1 where nobody reads it
  std::vector<int64_t> freed;      // registers that this call reads last
  void* kernel = nullptr;          // void(pointers of the arguments …, int64_t sizes …)
  std::vector<int64_t> sizes = {};
};

struct Program {
  int64_t registers, inputs;  // inputs stand in the first registers
  std::vector<int64_t> outputs;
  std::vector<c10::IValue> constants;
  std::vector<Call> calls;
};

std::mutex mutex;
std::map<int64_t, std::shared_ptr<Program>> programs;
int64_t created = 0;

std::shared_ptr<Program> find(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = programs.find(id);
  TORCH_CHECK(found != programs.end(), "no program ", id);
  return found->second;
}

int64_t create(int64_t registers, int64_t inputs, at::IntArrayRef outputs) {
  const std::lock_guard<std::mutex> lock(mutex);
  programs[++created] = std::make_shared<Program>(Program{registers, inputs, outputs.vec(), {}, {}});
  return created;
}

void destroy(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex);
  programs.erase(id);
}

// A boxed kernel, because its argument is of any type.
void add_constant(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  c10::IValue value = torch::jit::pop(*stack);
  const auto program = find(torch::jit::pop(*stack).toInt());
  program->constants.push_back(std::move(value));
  torch::jit::push(*stack, static_cast<int64_t>(program->constants.size()) - 1);
}

void check_registers(const Program& program, at::IntArrayRef arguments, at::IntArrayRef results, at::IntArrayRef freed) {
  const int64_t constants = program.constants.size(), registers = program.registers;
  for (const int64_t a : arguments) TORCH_CHECK(a < registers && -1 - a < constants, "argument ", a);
  for (const int64_t r : results) TORCH_CHECK(r >= -1 && r < registers, "result ", r);
  for (const int64_t r : freed) TORCH_CHECK(r >= 0 && r < registers, "freed ", r);
}

// The tensors `items` as a list in register `result`.
void add_list(int64_t id, at::IntArrayRef items, int64_t result) {
  const auto program = find(id);
  check_registers(*program, items, result, {});
  program->calls.push_back(Call{std::nullopt, items.vec(), {result}, {}});
}

void add_call(int64_t id, std::string_view name, std::string_view overload, at::IntArrayRef arguments,
              at::IntArrayRef results, at::IntArrayRef freed) {
  const auto program = find(id);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(std::string(name).c_str(), std::string(overload).c_str());
  TORCH_CHECK(op.schema().arguments().size() == arguments.size(), name, " takes ", op.schema().arguments().size(),
              " arguments, not ", arguments.size());
  TORCH_CHECK(op.schema().returns().size() == results.size(), name, " returns ", op.schema().returns().size());
  check_registers(*program, arguments, results, freed);
  program->calls.push_back(Call{op, arguments.vec(), results.vec(), freed.vec()});
}

void add_kernel(int64_t id, int64_t address, at::IntArrayRef arguments, at::IntArrayRef sizes, at::IntArrayRef freed) {
  const auto program = find(id);
  TORCH_CHECK(arguments.size() + sizes.size() <= kMostPointers, arguments.size() + sizes.size(), " arguments");
  check_registers(*program, arguments, {}, freed);
  program->calls.push_back(
      Call{std::nullopt, arguments.vec(), {}, freed.vec(), reinterpret_cast<void*>(address), sizes.vec()});
}

// Pointers and integers are passed alike, so a kernel of n of them is called as one of n integers.
template <size_t... I>
void call_with(void* kernel, const int64_t* values, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(decltype(values[I] + 0)...)>(kernel)(values[I]...);
}

template <size_t... N>
constexpr auto callers(std::index_sequence<N...>) {
  using Caller = void (*)(void*, const int64_t*);
  return std::array<Caller, sizeof...(N)>{
      [](void* kernel, const int64_t* values) { call_with(kernel, values, std::make_index_sequence<N>{}); }...};
}

template <typename Value>
void run_kernel(const Call& call, const Value& value) {
  static constexpr auto by_count = callers(std::make_index_sequence<kMostPointers + 1>{});
  int64_t values[kMostPointers];
  size_t count = 0;
  for (const int64_t a : call.arguments) values[count++] = reinterpret_cast<int64_t>(value(a).toTensor().data_ptr());
  for (const int64_t size : call.sizes) values[count++] = size;
  by_count[count](call.kernel, values);
}

std::vector<at::Tensor> run(int64_t id, at::TensorList inputs) {
  const auto program = find(id);
  TORCH_CHECK(static_cast<int64_t>(inputs.size()) == program->inputs, inputs.size(), " inputs");
  std::vector<c10::IValue> registers(program->registers);
  for (size_t i = 0; i < inputs.size(); ++i) registers[i] = inputs[i];
  torch::jit::Stack stack;
  const auto value = [&](int64_t a) -> const c10::IValue& {
    return a >= 0 ? registers[a] : program->constants[-1 - a];
  };
  for (const Call& call : program->calls) {
    stack.clear();
    if (call.op) {
      for (const int64_t a : call.arguments) stack.push_back(value(a));
      call.op->callBoxed(stack);
    } else if (call.kernel) {
      run_kernel(call, value);
    } else {
      c10::List<at::Tensor> items;
      for (const int64_t a : call.arguments) items.push_back(value(a).toTensor());
      stack.emplace_back(std::move(items));
    }
    for (const int64_t r : call.freed) registers[r] = c10::IValue();
    for (size_t i = 0; i < call.results.size(); ++i)
      if (call.results[i] >= 0) registers[call.results[i]] = std::move(stack[i]);
  }
  std::vector<at::Tensor> outputs;
  for (const int64_t r : program->outputs) outputs.push_back(registers[r].toTensor());
  return outputs;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("create(int registers, int inputs, int[] outputs) -> int", &create);
  m.def("destroy(int program) -> ()", &destroy);
  m.def("add_constant(int program, Any value) -> int", torch::CppFunction::makeFromBoxedFunction<&add_constant>());
  m.def("add_list(int program, int[] items, int result) -> ()", &add_list);
  m.def("add_call(int program, str name, str overload, int[] arguments, int[] results, int[] freed) -> ()", &add_call);
  m.def("add_kernel(int program, int address, int[] arguments, int[] sizes, int[] freed) -> ()", &add_kernel);
  m.def("run(int program, Tensor[] inputs) -> Tensor[]", &run);
}

}  // namespace replay_op
