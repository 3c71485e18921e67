"""Topics of people and duties: family, neighbours, work, school, languages, good causes."""

from polyreply.data.smalltalk.topic import Slot, Topic

PEOPLE = (
    Topic(
        name="family",
        doing="planning a {event}",
        thing="the {event}",
        slots={
            "event": Slot(
                train="""family reunion, birthday party, picnic, surprise party, tea party, big dinner,
                    fancy-dress party""",
                valid="garden party, costume ball, cheese tasting",
                test="housewarming party, barbecue, farewell party",
            )
        },
        train=(
            "I'm planning a {event} for my {kin} {day}.",
            "{name} and I sit over lists {often}, because we're planning a {event}.",
            "Half the family is coming to {place}, and I'm the one planning the {event}.",
            "My {friend} has left me alone with planning the {event} {day}.",
        ),
        valid=("Somebody had to plan the {event} {day}, so {name} and I are doing it.",),
        test=("I've got three notebooks, since {name} wants me to plan a {event} {day}.",),
    ),
    Topic(
        name="children",
        doing="helping children with {homework}",
        thing="the {homework}",
        slots={
            "homework": Slot(
                train="""maths, spelling, science projects, French verbs, book reports, geography, times
                    tables""",
                valid="fractions, essays, history projects",
                test="grammar, reading, chemistry homework",
            )
        },
        train=(
            "I help the children next door with {homework} {often}.",
            "My {kin} looks after two little ones, and I help them with {homework} {often}.",
            "{name} and I run a homework club in {place}, where we help children with {homework}.",
            "I've said I'd help my {friend}'s children with {homework} {day}.",
        ),
        valid=("{name} drops the twins off {often}, and I help them with {homework}.",),
        test=("At the youth centre I help children with {homework} {often}, together with {name}.",),
    ),
    Topic(
        name="neighbours",
        doing="sharing a {shared} with the neighbours",
        thing="the shared {shared}",
        slots={
            "shared": Slot(
                train="""lawnmower, driveway, garden, ladder, washing line, parking space, compost heap,
                    balcony""",
                valid="toolbox, wheelbarrow, trampoline",
                test="hedge trimmer, bike shed, barbecue grill",
            )
        },
        train=(
            "I now share a {shared} with the neighbours, and {name} looks after it.",
            "In our street in {place} we've started sharing a {shared}.",
            "My {kin} can't believe that I share a {shared} with the neighbours.",
            "The neighbours came over with cake, and {season} we'll begin sharing a {shared}.",
        ),
        valid=("Here in {place} there's a rota on the wall, because {name} next door and I share a {shared}.",),
        test=("{name} from upstairs and I are going to share a {shared} {season}.",),
    ),
    Topic(
        name="work",
        doing="working on a {task}",
        thing="the {task}",
        slots={
            "task": Slot(
                train="""budget, newsletter, sales report, grant application, timetable, training plan, team
                    website, customer survey""",
                valid="price list, press release, company handbook",
                test="business plan, safety report, job advert",
            )
        },
        train=(
            "I'm working on a {task} for the office in {place}.",
            "{name} wants it done {day}, so I'm working on the {task} like mad.",
            "{name} and I stay at the office {often} to work on the {task}.",
            "Nobody else volunteered, so I'm working on the {task}, and {day} I'll show it to {name}.",
        ),
        valid=("The meeting is {day}, so {name} and I are working on the {task}.",),
        test=("I take the laptop home {often}, since {name} and I are working on a {task}.",),
    ),
    Topic(
        name="school",
        doing="studying {subject}",
        thing="the {subject} course",
        slots={
            "subject": Slot(
                train="""law, chemistry, philosophy, accounting, astronomy, biology, psychology, music
                    theory, statistics""",
                valid="sociology, book-keeping, linguistics",
                test="geology, nursing, theology",
            )
        },
        train=(
            "I've gone back to school in {place}, and I'm studying {subject}.",
            "I study {subject} {hour}, with a highlighter in each hand.",
            "{name} and I are going to study {subject} together {season}.",
            "My {kin} asked why I'm studying {subject} at my age.",
        ),
        valid=("The evening class in {place} has room, so {name} and I are studying {subject}.",),
        test=("You may laugh, but {season} I'm going to study {subject}, just like {name}.",),
    ),
    Topic(
        name="exams",
        doing="revising for a {exam}",
        thing="the {exam}",
        slots={
            "exam": Slot(
                train="""driving test, maths exam, first-aid test, cookery exam, sailing test, Latin exam,
                    history exam""",
                valid="boating test, pottery exam, physics test",
                test="hunting test, midwifery exam, spelling bee",
            )
        },
        train=(
            "I'm revising for a {exam} {hour}, with cards all over the floor.",
            "The {exam} is {day}, and I've only just begun revising.",
            "{name} and I meet in a café in {place} to revise for the {exam}.",
            "My {kin} quizzes me over dinner, because I'm revising for a {exam}.",
        ),
        valid=("I've told {name} I can't come out {day}, as I'm revising for a {exam}.",),
        test=("The library in {place} is where {name} and I revise for the {exam}.",),
    ),
    Topic(
        name="languages",
        doing="learning {language}",
        thing="the {language} lessons",
        slots={
            "language": Slot(
                train="""Spanish, Swahili, Japanese, Polish, Arabic, Dutch, Swedish, Hindi, Turkish, Welsh,
                    Greek, Russian""",
                valid="Danish, Hebrew, Basque",
                test="Finnish, Thai, Czech",
            )
        },
        train=(
            "I'm learning {language}, ten new words a day.",
            "{name} speaks it at home, so I've started learning {language} {hour}.",
            "There's a teacher in {place} who helps me to learn {language} {often}.",
            "I'd like to talk to my {friend} properly, which is why I'm learning {language}.",
            "My {kin} and I are learning {language} for our holiday {season}.",
        ),
        valid=("I talk to myself {hour}, because {name} and I are learning {language}.",),
        test=("A new course starts {season}, and {name} and I are going to learn {language}.",),
    ),
    Topic(
        name="driving",
        doing="learning to drive a {machine}",
        thing="the {machine}",
        slots={
            "machine": Slot(
                train="van, truck, tractor, forklift, school bus, racing car, snow plough, vintage car",
                valid="hovercraft, milk float, taxi",
                test="lorry, steamroller, fire engine",
            )
        },
        train=(
            "I'm learning to drive a {machine}, in the quiet streets of {place}.",
            "{name} is brave enough to sit beside me while I learn to drive a {machine}.",
            "For the new job {season} I have to learn to drive a {machine}.",
            "I'm out {often} with my {kin}, learning to drive a {machine}.",
        ),
        valid=("The first lesson is {season}, when {name} will teach me to drive a {machine}.",),
        test=("I've never liked parking, but with {name} I'm learning to drive a {machine} {often}.",),
    ),
    Topic(
        name="volunteering",
        doing="volunteering at the {cause}",
        thing="the work at the {cause}",
        slots={
            "cause": Slot(
                train="""animal shelter, food bank, library, hospital shop, youth club, village museum, soup
                    kitchen, charity shop""",
                valid="lifeboat station, community garden, night shelter",
                test="toy library, steam railway, cat rescue centre",
            )
        },
        train=(
            "I volunteer at the {cause} {often}, and there's always more to do.",
            "{name} asked for help, so I'm volunteering at the {cause} {day}.",
            "Since I retired, I've been volunteering at the {cause} in {place}.",
            "My {kin} and I have put our names down to volunteer at the {cause}.",
        ),
        valid=("They're short of hands, so {day} {name} and I will be volunteering at the {cause}.",),
        test=("I've told {name} that I'll volunteer at the {cause} {often} from now on.",),
    ),
    Topic(
        name="holidays",
        doing="making {decoration}",
        thing="the {decoration}",
        slots={
            "decoration": Slot(
                train="""paper stars, lanterns, wreaths, candles, Christmas cards, Easter baskets, paper
                    chains, masks""",
                valid="garlands, snowmen, window pictures",
                test="streamers, glass baubles, straw angels",
            )
        },
        train=(
            "The holidays are coming, so {name} and I are making {decoration} {often}.",
            "I make {decoration} {often}, and by December the house is full of them.",
            "My {kin} and I are making {decoration} for the street party {day}.",
            "For the festival in {place} I've been asked to help with making {decoration}.",
        ),
        valid=("There's glue on my fingers, as {name} has me making {decoration} {often}.",),
        test=("Our tradition before the holidays is making {decoration} with {name} {often}.",),
    ),
)
