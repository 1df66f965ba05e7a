// How an instruction sees its operands, and what it may count on.
//
// Rows 0 .. active-1 hold every live row of the step; what lies behind is padding that nobody reads, so no instruction
// computes it. Among the active rows there may still be padding (on the scratch slot, position 0): it is computed like
// any other where that is harmless, and skipped where state is touched.
struct Call {
  const Instruction &instruction;
  Program &program;
  Worker &worker;

  const Tensor &operand(int index) const { return instruction.operands[index]; }
  template <class T>
  T *data(int index) const { return (T *)instruction.operands[index].data; }
  double attribute(int index) const { return instruction.attributes[index]; }
  uint8_t *scratch() const { return program.scratch; }
  // Rows to compute of an operand [T, ...]: T is the rows of the bucket, or 1 behind take_rows.
  int64_t rows(const Tensor &tensor) const {
    return tensor.dims[0] < program.active ? tensor.dims[0] : program.active;
  }
};

// Scratch is handed out in 64-byte steps; the same code adds up how much there must be and says where each part lies.
struct Scratch {
  uint8_t *base;  // null while sizes are added up
  int64_t used = 0;
  template <class T>
  T *take(int64_t count) {
    T *at = (T *)(base + used);
    used += round_up(count * (int64_t)sizeof(T), 64);
    return at;
  }
};
