// What a short step (replaying.py) does for each of several hundred tensors, in one call.

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using namespace torch::autograd;

// --- gradients accumulated in their parameters within the node that computes them ---
// by PyTorch's own AccumulateGrad nodes. Autograd's engine queues these one by one, with a lookup, a task and a switch of
// all thread-local state for each. Here they run in a loop, and the node's edges are cut, so that the engine finds none
// to follow. That is the same wherever they have nothing but a gradient of this node to wait for, and nobody watches
// them but DistributedDataParallel, whose hooks run here too; everywhere else, accumulate() does nothing and returns
// false.

// The backward() call is for everything: not for some inputs, not to be repeated, differentiated or debugged.
bool is_ordinary_backward() {
  const auto* wanted = get_current_graph_task_exec_info();  // nullptr outside of a backward
  return wanted != nullptr && wanted->empty() && !get_current_graph_task_keep_graph() && !at::GradMode::is_enabled() &&
      !AnomalyMode::is_enabled();
}

// Hooks in C++, such as DistributedDataParallel's, none of the program's in Python.
bool are_native(const std::vector<std::unique_ptr<FunctionPostHook>>& hooks) {
  return std::all_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<utils::LambdaPostHook*>(hook.get()) != nullptr;
  });
}

// The node as that of a parameter, or other leaf, without hooks of the program's; nullptr: it is another one.
AccumulateGrad* unwatched_leaf(Node* node) {
  auto* leaf = dynamic_cast<AccumulateGrad*>(node);
  const bool is_plain = leaf != nullptr && leaf->pre_hooks().empty() && are_native(leaf->post_hooks()) &&
      leaf->tensor_pre_hooks().empty() && leaf->retains_grad_hooks().empty() &&
      leaf->tensor_post_acc_grad_hooks() == nullptr;
  return is_plain ? leaf : nullptr;
}

// As the engine runs it: hooks are called where there is no gradient, too.
void run(AccumulateGrad& leaf, at::Tensor gradient) {
  variable_list gradients;
  gradients.push_back(std::move(gradient));
  if (leaf.post_hooks().empty()) {
    leaf(std::move(gradients));
    return;
  }
  auto results = leaf(variable_list(gradients)); // which knows that its hooks hold the gradient as well
  for (const auto& hook : leaf.post_hooks())
    results = (*hook)(results, gradients);
}

bool leads_to_any(const Node& node, const std::vector<AccumulateGrad*>& leaves) {
  return std::any_of(node.next_edges().begin(), node.next_edges().end(), [&](const Edge& edge) {
    return edge.is_valid() && std::find(leaves.begin(), leaves.end(), edge.function.get()) != leaves.end();
  });
}

// The leaves that the node's edges lead to, in their order; empty: the engine has to follow these edges.
std::vector<AccumulateGrad*> leaves_of(Node& node, PyObject* gradients) {
  std::vector<AccumulateGrad*> leaves;
  const auto stream = node.stream();
  for (size_t i = 0; i < node.num_outputs(); i++) {
    PyObject* gradient = PyList_GET_ITEM(gradients, i);
    auto* leaf = unwatched_leaf(node.next_edge(i).function.get());
    if (leaf == nullptr || leaf->stream() != stream)
      return {};
    if (gradient != Py_None && !THPVariable_CheckExact(gradient))
      return {};
    leaves.push_back(leaf);
  }
  const auto* nodes = get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr)
    return {};
  for (const auto* other : *nodes)
    if (other != &node && leads_to_any(*other, leaves))
      return {};
  return leaves;
}

// AccumulateGrad keeps a gradient that nobody else holds, and copies others.
variable_list take(PyObject* gradients) {
  variable_list taken(PyList_GET_SIZE(gradients));
  for (size_t i = 0; i < taken.size(); i++) {
    PyObject* gradient = PyList_GET_ITEM(gradients, i);
    if (gradient != Py_None) {
      taken[i] = THPVariable_Unpack(gradient);
      Py_INCREF(Py_None);
      PyList_SetItem(gradients, i, Py_None);
    }
  }
  return taken;
}

// Tensors like others, from the allocator itself: at::empty_like takes half as long again, as it goes through PyTorch's
// dispatcher three times. Modes of the program that watch the dispatcher are shown at::empty_like.
class Empties {
 public:
  explicit Empties(const at::Tensor& first)
      : device_(first.device()), guard_(device_), keys_(first.options().computeDispatchKey()) {
    if (!c10::impl::dispatch_mode_enabled())
      allocator_ = at::empty({0}, first.options()).storage().allocator();
  }

  at::Tensor like(const at::Tensor& tensor) const {
    const bool is_plain = tensor.device() == device_ && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
        tensor.is_non_overlapping_and_dense();
    if (allocator_ == nullptr || !is_plain)
      return at::empty_like(tensor);
    return at::detail::empty_strided_generic(
        tensor.sizes(), tensor.strides(), allocator_, keys_, tensor.scalar_type());
  }

 private:
  at::Device device_;
  c10::DeviceGuard guard_; // the device that the allocator takes memory of
  c10::DispatchKeySet keys_;
  c10::Allocator* allocator_ = nullptr;
};

// Copies in memory of their own, by few kernels; undefined ones stay.
variable_list copies_of(const variable_list& gradients) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto first = std::find_if(gradients.begin(), gradients.end(), [](const auto& x) { return x.defined(); });
  if (first == gradients.end())
    return gradients;
  const Empties empties(*first);
  variable_list copies(gradients.size());
  std::unordered_map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_dtype;
  for (size_t i = 0; i < gradients.size(); i++) {
    if (gradients[i].defined()) {
      copies[i] = empties.like(gradients[i]);
      auto& [to, from] = by_dtype[gradients[i].scalar_type()];
      to.push_back(copies[i]);
      from.push_back(gradients[i]);
    }
  }
  for (auto& [_, pair] : by_dtype)
    at::_foreach_copy_(pair.first, pair.second);
  return copies;
}

bool accumulate(THPFunction* context, PyObject* gradients, bool copies) {
  auto node = get_current_node();
  if (!node || !is_ordinary_backward() || !node->post_hooks().empty() ||
      node->num_outputs() != static_cast<size_t>(PyList_GET_SIZE(gradients)))
    return false;
  const auto leaves = leaves_of(*node, gradients);
  if (leaves.empty())
    return false;
  auto taken = take(gradients);
  {
    pybind11::gil_scoped_release released;  // another thread's backward may hold a leaf's lock, and wait for Python
    if (copies)
      taken = copies_of(taken);
    // As the engine does: of another dtype than the leaf wants, for one, they are converted.
    validate_outputs(node->next_edges(), taken, [](const std::string& message) { return message; });
    for (size_t i = leaves.size(); i-- > 0;) // the last layers' are in the buckets that are reduced first
      run(*leaves[i], std::move(taken[i]));
    node->set_next_edges({});
  }
  context->is_variable_input.clear();  // as many results as there are edges now
  return true;
}

// accumulate(context, gradients, copies): the context is that of the node that runs, whose edges lead to a leaf for each
// of the gradients, a list of tensors or None, or for its copy. True: it is emptied, and backward() has to return ().
PyObject* call_accumulate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 3 && THPFunction_Check(args[0]) && PyList_CheckExact(args[1]),
      "accumulate(context, list of gradients, whether to copy them)");
  return PyBool_FromLong(accumulate(reinterpret_cast<THPFunction*>(args[0]), args[1], args[2] == Py_True));
  END_HANDLE_TH_ERRORS
}

// --- where tensors lie, whether they have changed, and what they are ---
template <typename... Number>
PyObject* numbers_of(PyObject* tensors, const Number&... numbers) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(tensors), "not a list of tensors");
  const auto count = static_cast<size_t>(PyList_GET_SIZE(tensors));
  std::vector<uint64_t> found(count * sizeof...(Number));
  for (size_t i = 0; i < count; i++) {
    PyObject* item = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(item), "not a list of tensors");
    size_t place = i;
    ((found[place] = numbers(THPVariable_Unpack(item)), place += count), ...);
  }
  const auto size = static_cast<Py_ssize_t>(found.size() * sizeof(uint64_t));
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()), size);
  END_HANDLE_TH_ERRORS
}

uint64_t address(const at::Tensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.const_data_ptr());
}

uint64_t version(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor._version());
}

// addresses(list of tensors): as bytes, 8 for each.
PyObject* call_addresses(PyObject*, PyObject* tensors) {
  return numbers_of(tensors, address);
}

// looks(list of tensors): the addresses, and then the versions.
PyObject* call_looks(PyObject*, PyObject* tensors) {
  return numbers_of(tensors, address, version);
}

// What Dynamo guards of a tensor, in numbers that say it all.
void put_kind(std::vector<int64_t>& kinds, const at::Tensor& tensor) {
  const bool is_strided = tensor.layout() == at::kStrided;
  const auto device = tensor.device();
  for (const int64_t number :
       {int64_t(tensor.requires_grad()), int64_t(tensor.scalar_type()), int64_t(device.type()), int64_t(device.index()),
        int64_t(tensor.layout()), tensor.dim()})
    kinds.push_back(number);
  kinds.insert(kinds.end(), tensor.sizes().begin(), tensor.sizes().end());
  if (is_strided)
    kinds.insert(kinds.end(), tensor.strides().begin(), tensor.strides().end());
}

// kinds(list of weak references to tensors): bytes; None where a tensor is gone.
PyObject* call_kinds(PyObject*, PyObject* references) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(references), "not a list of weak references");
  const auto count = PyList_GET_SIZE(references);
  std::vector<int64_t> found;
  found.reserve(count * 14);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject* item = PyObject_CallNoArgs(PyList_GET_ITEM(references, i));
    if (item == nullptr)
      return nullptr;
    const bool is_tensor = THPVariable_Check(item);
    if (is_tensor)
      put_kind(found, THPVariable_Unpack(item));
    Py_DECREF(item);
    if (!is_tensor)
      Py_RETURN_NONE;
  }
  const auto size = static_cast<Py_ssize_t>(found.size() * sizeof(int64_t));
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()), size);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"accumulate", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_accumulate)), METH_FASTCALL, nullptr},
    {"addresses", call_addresses, METH_O, nullptr},
    {"kinds", call_kinds, METH_O, nullptr},
    {"looks", call_looks, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "native_steps", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_native_steps() {
  return PyModule_Create(&module);
}
