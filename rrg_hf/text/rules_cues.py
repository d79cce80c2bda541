"""What the rule labeller reads around a finding: negation, uncertainty, predicates of anatomy, and scope marks.

Same notation as `rules_lexicon`. Which hedges count as uncertain follows chexpert-labeler: modal verbs (may, could,
might), "possible", "probable", "suspected", "concern for", "versus", "X or Y", "cannot exclude", "no new X" are
uncertain; "likely", "consistent with", "suggesting" and "compatible with" are positive.
"""

from __future__ import annotations

_ADV = (
    r"(?:(?:definite(?:ly)?|clear(?:ly)?|significant(?:ly)?|substantial(?:ly)?|appreciabl[ey]|completely|entirely|now"
    r"|currently|well|also|convincingly|reliably|overtly|grossly|confidently|yet|again|further|really|any|clearly"
    r"|otherwise|absolutely|fully|necessarily|particularly|markedly|overly) )*"
)
_BE = r"(?:(?:is|are|was|were|has been|have been|be|being|appears?|remains?) )?"
_SEEN = (
    r"(?:seen|identified|present|visuali[sz]ed|evident|detected|demonstrated|noted|apparent|found|visible|observed"
    r"|recogni[sz]ed|discerned|suggested|shown|delineated|there)"
)
_MODAL = r"(?:may|might|could|would|can)"
_CHANGE = (
    r"(?:change|changes|increase|decrease|improvement|progression|worsening|difference|alteration|clearing|interval"
    r" (?:change|increase|decrease|improvement|progression|worsening|clearing)|reaccumulation|resolution)"
)
_CHANGE_ADJ = (
    r"(?:(?:significant|substantial|appreciable|relevant|definite|major|acute|gross|real|marked|notable|obvious|overt"
    r"|great|other|further|dramatic|overall|significantly|considerable|short|term|large|interval|new|convincing"
    r"|radiographic|clinically|measurable|apparent|or|and) )*"
)

# Before a finding: absent. Reaches over commas, "and", "or" to the end of its clause.
NEGATION_BEFORE: list[str] = [
    r"no",
    r"without",
    r"w/o",
    r"free (?:of|from)",
    r"clear of",
    r"(?:expanded and clear|lungs? (?:is|are) clear)(?= airspace disease)",  # "of" is often lost
    r"(?:is|are|was|were) negative",
    r"negative for",
    r"negative",
    r"(?:in )?(?:the )?absence of",
    r"lack of",
    r"lacks?",
    r"absent",
    r"(?:fails?|failed) to (?:show|demonstrate|reveal)",
    r"(?:interval )?(?:complete )?(?:resolution|disappearance|clearance) of",
    r"(?:interval )?removal of",
    r"(?:interval )?(?:resolved|cleared)",
    r"(?:interval )?(?:clearing) of",
    r"neither",
    r"nor",
    r"never",
    r"denies",
    r"rul(?:es|ed|ing) out",
    r"exclud(?:es|ed|ing)",
    r"exclusion of",
    r"rather than",
    r"instead of",
    r"(?:do|does|did) not (?:\w+ly )?(?:suggest|represent|demonstrate|show|have|see|reveal|indicate|identify|appear)",
    r"(?:do|does|did) not (?:\w+ly )?(?:appear to )?(?:represent|have|be|show)",
    r"(?:don't|doesn't|didn't) (?:see|show|have|represent|suggest|demonstrate)",
    r"not (?:\w+ly )?(?:suggestive|suspicious|concerning|consistent|compatible|typical|indicative|diagnostic)"
    r"(?: (?:of|for|with))?",
    r"(?:is|are|was|were) (?:no|not a|not an|not any)",
    r"(?:is|are) not",
    r"not (?:have|see|show|demonstrate|due to|related to|associated with)",
    r"no longer(?: (?:any|shows?|has|have|demonstrates?))?",
    r"nothing to (?:suggest|indicate)",
    r"(?:no|without) (?:radiographic |convincing |definite |clear |acute |focal |other |new |plain film |x ray |xray |"
    r"radiologic |imaging |significant |gross |frank |overt |suspicious |specific |secondary |obvious )*"
    r"(?:evidence|signs?|findings?|features?|indication|suggestion|suspicion|appearance|manifestations?|area|areas"
    r"|focus|foci|radiographic evidence|development|abnormality|abnormalities|stigmata|concern|changes)"
    r"(?: (?:of|for|to suggest|to indicate|suggestive of|suggesting|suspicious for|concerning for|consistent with"
    r"|diagnostic of|that would suggest|compatible with|seen to suggest|indicative of|worrisome for|indicating))?",
    r"no (?:acute )?(?:pulmonary |cardiopulmonary |parenchymal )?(?:process|findings?|abnormalit(?:y|ies)|changes?) "
    r"(?:to suggest|suggestive of|suggesting|to indicate|suspicious for|concerning for)",
]

# After a finding: absent. Reaches back to the start of its clause.
NEGATION_AFTER: list[str] = [
    rf"{_BE}not {_ADV}{_SEEN}",
    rf"(?:cannot|can't|can not|could not) be {_ADV}{_SEEN}",
    rf"{_BE}(?:no longer|not any longer|no more) {_ADV}{_SEEN}",
    r"no longer",
    rf"{_BE}{_ADV}absent",
    r"(?:has|have|had) (?:(?:now|since|completely|essentially|entirely|again|subsequently|been|interval|fully|also"
    r"|apparently) ){0,2}(?:resolved|cleared|disappeared|reexpanded|re expanded|been removed"
    r"|been extracted|been discontinued|been taken out|been excluded|been ruled out"
    r"|been drained|been evacuated)",
    r"(?:is|are|was|were) (?:now |completely |subsequently |since |since been |essentially )*(?:resolved|cleared|gone"
    r"|removed|ruled out|excluded|negative|discontinued|extracted)",
    r"(?:now |since |interval(?:ly)? |has since |completely |subsequently )?(?:resolved|removed)",
    r"(?:with )?(?:interval |complete )*resolution",
    r"(?:with )?interval removal",
    r"removal",
    r"none(?: (?:seen|identified|noted|present|visuali[sz]ed))?",
    r"nil",
]

# Between the two: what is "nearly resolved" is still there.
ALMOST: list[str] = [
    r"(?:has |have |is |are |had )?(?:nearly|almost|partially|partly|mostly|largely|near|incompletely|substantially)"
    r"(?: (?:completely|entirely|complete|fully))? (?:resolved|cleared|resolution|clearing)(?: of)?",
    r"(?:with )?(?:interval )?(?:partial|near complete|nearly complete|incomplete|near total) (?:interval )?"
    r"(?:resolution|clearing)(?: of)?",
]
# Before a finding: uncertain, within its noun phrase or list.
UNCERTAIN_BEFORE: list[str] = [
    r"possibl[ey]",
    r"probabl[ey]",
    r"presum(?:ed|ably|ptive|ably representing)",
    r"questionabl[ey]",
    r"question(?:able)?(?: of)?",
    r"equivocal",
    r"suggestions? of",
    r"hint of",
    r"with or without",
    r"(?:maybe|perhaps|conceivably)",
    r"border ?line(?: to mild(?:ly)?)?",
    r"potential(?:ly)?",
    r"suspect(?:ed|s)?",
    r"suspicion (?:of|for)",
    r"apparent",
    r"no new(?: or (?:worsening|increasing|enlarging|progressive))?",
    r"vs",
]
# Before a finding: uncertain for everything to the end of the clause.
UNCERTAIN_CLAUSE: list[str] = [
    rf"{_MODAL} (?:(?:\w+ly|also|either|well|simply|all|still|in part|just|even|both|alternatively|instead) ){{0,3}}"
    r"(?:be|represent|reflect|indicate|suggest|include|relate|be due|be secondary|account|signify|correspond|mimic"
    r"|have|simulate|result|contain|indicates|related|relat|reflects|represents|mask|obscure|imply|been)"
    r"(?: (?:(?:\w+ly|either|a combination of|some|due to|secondary to|related to) ){0,2}"
    r"(?:represent(?:ing)?|reflect(?:ing)?|consistent with|compatible with))?",
    rf"{_MODAL} (?:well )?(?:be )?(?:due|secondary|related|attributable|consistent|compatible)",
    r"(?:possibly|probably|perhaps|potentially|presumably) (?:\w+ )?(?:representing|reflecting|related to|due to"
    r"|secondary to|indicating|from|in the setting of|represents?|reflects?)",
    r"there (?:may|might|could) (?:also )?be",
    r"concern(?:s|ing|ed)? (?:for|of|about|regarding|that)",
    r"worrisome (?:for|of)",
    r"worry for",
    r"suspicious (?:for|of)",
    r"(?:raises?|raising|raised|suggests?) (?:the )?(?:possibility|question|concern|suspicion|likelihood)"
    r"(?: (?:of|for|that))?",
    r"(?:a |the )?possibility of",
    r"(?:a |the )?question (?:of|is raised of)",
    r"favou?r(?:s|ed|ing)?(?: (?:to represent|to be|to reflect))?",
    r"consider(?:ed|ing|ation)?(?: (?:of|for))?",
    r"(?:cannot|can not|can't|could not|couldn't|unable to|not possible to|impossible to|be difficult to|difficult to"
    r"|hard to)(?: (?:be )?(?:\w+ly|fully|totally))? (?:exclude|rule out|discount|r/o|differentiate|distinguish"
    r"|assess for|evaluate for)",
    r"(?:does not|do not|doesn't|don't|not|without) (?:\w+ly )?(?:exclude|excluding|rule out|ruling out)",
    r"(?:exclude|rule out)",
    r"correlat\w+ (?:clinically )?as to",
    r"(?:signs?|symptoms?)(?: (?:and|or|signs?|symptoms?)){1,3} of",
    r"symptoms of",
    r"(?:to|would help to|helpful to|help) (?:exclude|rule out|r/o|evaluate for|assess for|confirm)",
    r"(?:versus|vs|as opposed to)",
    r"(?:less|least) likely",
    r"(?:as|if) (?:clinically )?(?:indicated|suspected) (?:for )?",
    r"(?:correlat(?:e|ion)|clinical correlation)(?: \w+)? (?:for|with)(?: (?:any|signs and|signs or|signs|symptoms|"
    r"evidence|symptoms or signs|clinical)){0,3}(?: of)?",
    r"alternatively",
    r"not (?:definitely|definitively|entirely|necessarily)",
    r"uncertain(?: (?:if|whether))?",
    r"unclear (?:if|whether)",
    r"unlikely(?: (?:to represent|to be|to reflect))?",
]

# Before a list of candidates: uncertain for all of them, commas or not.
DIFFERENTIAL: list[str] = [
    r"differential(?: (?:diagnos(?:is|es|tic)))?(?: considerations?)?(?: (?:would|could|may|might|also|still)){0,2}"
    r"(?: (?:includes?|including|is|of|for|are))?",
    r"ddx",
    r"considerations? (?:includes?|of|would include|is|are)",
]
# After a finding: uncertain.
UNCERTAIN_AFTER: list[str] = [
    r"(?:can ?not|can't|could not|can not|couldn't) (?:be )?(?:\w+ )?(?:be )?"
    r"(?:excluded|ruled out|eliminated|discounted|r/o|entirely excluded|confirmed)",
    rf"{_BE}not (?:be )?(?:\w+ )?(?:excluded|ruled out)",
    r"(?:is|are|was|were|remains?) (?:also |still |thus |therefore |again )?"
    r"(?:possible|questioned|suspected|questionable|suspicious|a consideration|a possibility|a concern|considered"
    r"|in the differential(?: diagnosis)?|uncertain|equivocal|indeterminate|unlikely|less likely|of concern|unclear"
    r"|conceivable|favou?red|not certain|not clear|probable|thought unlikely|felt unlikely|felt to be unlikely"
    r"|felt less likely|thought to be less likely|considered less likely|considered unlikely)",
    rf"{_MODAL} (?:also |well |still |certainly )?(?:be )?(?:present|considered|possible|seen|obscured|missed|hidden"
    r"|there|coexist|co exist|appear|contribute|contributing|developing|a consideration|a possibility|in the"
    r" differential|entertained|suspected|excluded|masked|questioned)",
    rf"{_MODAL} (?:also )?(?:have|give|produce|cause|create|show) (?:this|a similar|the same|such an?|similar)",
    r"should (?:also )?be (?:considered|excluded)",
    r"(?:would|may|might|could|can) be (?:difficult|hard|impossible) to (?:see|detect)",
    r"less likely",
    r"unlikely",
    r"not (?:\w+ly )?appreciated",
    r"not clearly (?:seen|identified|visuali[sz]ed|delineated|demonstrated|present)",
    r"to be considered",
    r"(?:in question|under consideration)",
]

# About anatomy ("the heart ..."); also about a finding that is hard to judge.
NORMAL: list[str] = [
    r"normal(?: (?:limits?|size|range|for age|variation|in size|contour|appearance|caliber))?",
    r"(?:within|at|in) (?:the )?(?:upper |upper limits of |broad |high |limits of )*normal(?: limits?)?",
    r"(?:the )?(?:upper|high|top|lower) (?:limits? |end |range )?(?:of )?(?:the )?normal(?: (?:limits?|range))?",
    r"wnl",
    r"unremarkable",
    r"non ?enlarged",
    r"not (?:\w+ly )?(?:enlarged|widened|dilated|increased|abnormal)",
    r"no longer (?:\w+ly )?(?:enlarged|widened)",
    r"(?:is|are) not (?:\w+ly )?(?:enlarged|widened|dilated|increased|abnormal)",
    r"negative",
    r"within limits",
    r"(?:not|nor) enlarged",
    r"intact",
    r"small",
]
ENLARGED: list[str] = [
    r"(?:enlarged|enlargement|enlarging|widened|widening|dilated|dilatation|cardiomegalic)",
    r"(?:increased|increase|larger) in (?:size|width|diameter)",
    r"(?:prominent|prominence|broadened|globular|increased|large|larger|big|generous|abnormal|fullness|full|bulky)",
    r"(?:above|exceeds?|beyond|greater than|over) (?:the )?(?:upper )?(?:limits? of )?normal(?: limits?)?",
]
STABLE: list[str] = [
    r"(?:un ?changed|stable|similar|constant|as before|unaltered|not (?:\w+ly )?changed|no(?:t)? change(?:d)?"
    r"|unchanging|same)",
    rf"(?:no|without) {_CHANGE_ADJ}{_CHANGE}(?: (?:in|of|from|to|since|compared|with|regarding|is seen in))?"
    r"(?: (?:the )?(?:size|appearance|extent|degree|amount|configuration|position|number|severity) (?:of|and))?",
    r"(?:has|have) not (?:\w+ly )?(?:changed|increased|decreased|improved|worsened)",
    r"(?:is|are) not (?:\w+ly )?(?:changed|different)",
]
BORDERLINE: list[str] = [
    r"(?:border ?line|mildly prominent size|equivocal|slightly prominent|(?:upper|high) normal to mildly enlarged)"
    r"(?: (?:enlarged|prominent|size|in size|enlargement|to mildly enlarged|for size))?",
    r"(?:normal|top normal) to (?:borderline|mildly|slightly)(?: (?:enlarged|prominent|increased))?",
    r"(?:may|might|could|possibly|probably|questionably) (?:be )?(?:\w+ly )?(?:enlarged|widened|prominent|large)",
]
POOR: list[str] = [
    r"(?:partially |completely |partly |somewhat |largely |mostly )?obscured",
    rf"{_BE}(?:not|poorly|incompletely|suboptimally|sub optimally|not well|cannot be|can not be|not be|inadequately"
    r"|difficult to|hard to|not adequately|not optimally|limited in|not fully|not reliably)"
    r" (?:\w+ )?(?:\w+ly )?(?:be )?(?:evaluated?|assess(?:ed)?|characteri[sz]ed?|determined?|judged?|well seen"
    r"|well visuali[sz]ed|well evaluated|well assessed|defined|delineated|commented)(?: (?:for|on))?",
    r"not well (?:seen|visuali[sz]ed|evaluated|assessed|defined|delineated|demonstrated)",
    r"(?:is|are) (?:poorly|incompletely|not well) (?:seen|visuali[sz]ed|evaluated|assessed|defined)",
    r"(?:indeterminate|inaccurate|difficult to evaluate|not evaluable)",
    r"(?:silhouetted|effaced)",
]

# Words that end what a cue reaches.
TERMINATORS: list[str] = [
    r"(?:but|however|although|though|albeit|except(?: for)?|yet|nevertheless|nonetheless|whereas|while|despite"
    r"|apart from|aside from|other than|with the exception of|because|since|until|even though|still|unless)",
    r"given",
    r"(?:which|who|where|that (?:is|are|has|have))",
    r"(?:after|following|status post|s/p|prior to|before|due to|secondary to|related to|attributable to"
    r"|in the setting of|superimposed on|likely due to|obscures?|obscuring)",
    r"there (?:is|are|was|were|has been|have been|appears? to be|remains?|continues? to be)"
    r"(?: (?:now|also|again|still))?",
    r"(?:again (?:seen|noted|demonstrated)|redemonstrat(?:ed|ion)|re demonstrat(?:ed|ion))",
]
# Subjects of a clause begin anew behind these.
VERBS: list[str] = [
    r"(?:is|are|was|were|has|have|had)",
    r"(?:demonstrates?|shows?|reveals?|appears?|remains?|persists?|contains?|terminates?|projects?|overl(?:y|ies)"
    r"|represents?|reflects?|suggests?|indicat(?:es?)|lies|extends?|measures?|ends|obscures|reside)",
]
WITH: list[str] = [r"(?:with|associated with|along with|in addition to|accompanied by|plus)"]
AND: list[str] = [r"(?:and|as well as|&)"]
OR: list[str] = [r"(?:or|and/or|nor)"]

# The finding is asked about or lies in the past: it gets no label.
IGNORE: list[str] = [
    r"(?:ensure|document|confirm|assess for|demonstrate|monitor|allow|show|assure|verify|establish)(?: for)?"
    r"(?: (?:interval|complete|adequate|their|its|full)){0,2} (?:resolution|clearing|improvement)(?: of)?",
    r"if",
    r"please note that",
    r"(?:known )?risk factors? (?:for|of)",
    r"(?:concern|suspicion) (?:remains|persists)",
    r"(?:please )?(?:evaluat(?:e|ion)|eval|assess(?:ment)?|check|look(?:ing)?|screen(?:ing)?|surveillance|query|r/o"
    r"|follow up|f/u|work ?up)(?: (?:for|of|to|interval))+",
    r"(?:please )?(?:eval|r/o|query)",
    r"(?:past |prior |known |remote |medical |clinical |recent |previous |personal |a |with |given |patient )*"
    r"history of",
    r"(?:history|hx|h/o)(?: of)?",
    r"(?:treated for|treatment for|being treated for|hospitali[sz]ed for|risk of|risk for|at risk for"
    r"|predispos\w+ to)",
    r"(?:sensitiv\w+|insensitive|specific) (?:for|to)(?: the)?(?: detection of)?",
    r"(?:dedicated|rib|rib series|ct|chest ct|views?) (?:series |views |study |imaging )?"
    r"(?:for|to (?:assess|evaluate))",
    r"(?:detect|detecting|detection of)",
]

# Swallowed, so that the "no" inside never starts a negation.
PSEUDO: list[str] = [
    rf"{_BE}(?:not|not well|no longer|cannot be|can not be|cannot be well|not clearly|not definitely) {_ADV}{_SEEN}"
    r"(?: either)? (?:on|in|at) (?:the |any |any of the |a )?(?:prior|previous|comparison|lateral|frontal|pa|ap"
    r"|earlier|recent|last|outside|old|older|preceding)",
    r"(?:to|until) (?:complete |full |its |their )?(?:resolution|clearing)",
    r"no (?:prior|previous|comparison|comparative|recent|old|relevant prior|other prior|available) "
    r"(?:\w+ )?(?:studies|study|exams?|examinations?|films?|radiographs?|images?|x rays?|available|comparisons?"
    r"|chest)",
    r"no (?:comparisons?|priors)",
    r"no (?:doubt|significant symptoms|history)",
    r"not only",
    r"without (?:difficulty|oblique|lateral|contrast|comparison)",
    r"no (?:lateral|oblique|pa) (?:view|film|image)s?",
    r"(?:no|without) (?:\w+ )?(?:complications?|complicating features?)",
]
