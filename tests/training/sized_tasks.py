"""A domain whose prompts grow by a word with every step of training."""

SYSTEM = {"role": "system", "content": "Say yes."}


class Sized:
    """One reply to a prompt of `words` words; pays 1 for a text of odd length."""

    def __init__(self, words: int):
        self.words, self.done = words, False
        self.observation = str(words)

    def messages(self):
        return [SYSTEM, {"role": "user", "content": " ".join(["a"] * self.words)}]

    def legal_actions(self):
        return ("yes", "no")

    def step(self, reply):
        self.done = True
        return float(len(reply) % 2)

    def record(self):
        return {"words": self.words}


class GrowingTasks:
    """The tasks of the n-th call have n words."""

    name = "sized"

    def __init__(self):
        self.calls = 0

    def new_episode(self, task, seed):
        return Sized(task["words"])

    def training_tasks(self, count, seed):
        self.calls += 1
        return [{"words": self.calls}] * count

    def evaluation_tasks(self, count, seed):
        return [{"words": 1}] * count

    def figures(self, tasks, records):
        return {"heard": sum(bool(record) for record in records) / len(records)}

    def baselines(self, tasks):
        return {}

    def expert_traces(self, num_decisions, seed, *, rationale=False):
        return [(Sized(1).messages(), "yes")] * num_decisions


class DrawnTasks(GrowingTasks):
    """Tasks of one to five words, drawn by the seed."""

    def training_tasks(self, count, seed):
        return [{"words": 1 + (seed + number) % 5} for number in range(count)]
